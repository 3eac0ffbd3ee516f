package papers

// llmnpu are the items of that paper.
var llmnpu []Item
