package papers

// agentxpu are the items of that paper.
var agentxpu []Item
