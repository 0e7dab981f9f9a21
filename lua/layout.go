package lua

// Layout is the version of the state that workers store: the keys of these scripts, the messages of the room, and the messages' headers.
// Increase it with every incompatible change: if the workers of the previous release cannot read the new state, and if this release cannot
// read the old state. A worker does not start beside workers of another layout.
const Layout = 3
