package papers

// npumoe are the items of that paper.
var npumoe []Item
