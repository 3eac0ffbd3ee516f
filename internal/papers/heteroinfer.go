package papers

// heteroinfer are the items of that paper.
var heteroinfer []Item
