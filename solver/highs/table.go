package highs

// The module's names are minified, and other ones in each release. These are of npm's highs 1.15.3, read from its
// highs.js: imports from wasmImports={...}, exports from Name=wasmExports["..."].

// imported are the functions that the module wants of its host, all of them in module "a".
var imported = map[string]string{
	"cxa_throw": "a", "exit": "b", "get_now": "c", "fd_close": "d", "fcntl64": "e", "fd_write": "f", "fd_read": "g",
	"ioctl": "h", "openat": "i", "date_now": "j", "abort": "k",
	"setitimer": "l", "tzset": "m", "environ_get": "n", "environ_sizes_get": "o",
	"clock_time_get": "p",
	"resize_heap":    "q", "proc_exit": "r", "keepalive_clear": "s", "fd_seek": "t",
}

const hostModule = "a"

// exported are the functions of the module that are called here.
var exported = map[string]string{
	"constructors": "v", "malloc": "uc", "free": "tc",
	"Highs_create": "F", "Highs_destroy": "G", "Highs_version": "H", "Highs_run": "N", "Highs_passMip": "V",
	"Highs_setBoolOptionValue": "ia", "Highs_setIntOptionValue": "ja",
	"Highs_setDoubleOptionValue": "ka", "Highs_setStringOptionValue": "la",
	"Highs_getIntInfoValue": "Aa", "Highs_getDoubleInfoValue": "Ba", "Highs_getInt64InfoValue": "Ca",
	"Highs_getSolution": "Ea", "Highs_getModelStatus": "Ga", "Highs_setSolution": "Va",
	"Highs_setCallback": "Xa", "Highs_startCallback": "Ya",
	"Highs_getCallbackDataOutItem": "nc", "Highs_getSizeofHighsInt": "Yb",
}

const (
	exportedMemory = "u"
	exportedTable  = "sc"
)
