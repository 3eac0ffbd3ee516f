//go:build !tilemodel

package kernel

// tilesModelled says that instructions of tiles are interpreted (see the tag tilemodel).
const tilesModelled = false
