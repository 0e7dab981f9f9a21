-- The scripts run inside Redis: Lua 5.1, and of Redis's own names only these, so that one file runs on
-- every server. Redis leaves out, or forbids, a part of Lua's library.
std = "lua51"
read_globals = { "redis", "KEYS", "ARGV" }
not_globals = { "dofile", "getfenv", "io", "loadfile", "module", "newproxy", "os", "package", "print", "require", "setfenv" }
-- A script's first line has the prelude in front; see scripts/lint-lua.
max_line_length = false
