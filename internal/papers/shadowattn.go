package papers

// shadowattn are the items of that paper.
var shadowattn []Item
