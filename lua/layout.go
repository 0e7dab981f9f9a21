package lua

// Layout numbers the forms in which workers store state: the keys of these scripts, the messages of the room, and the messages' headers. Raise it with
// every change of such a form that the workers of the release before cannot read, or that this release cannot read from them. A worker does not
// start beside workers of another layout.
const Layout = 1
