-- updated.lua: records which state a message shows. A repeated call changes nothing.
--
-- KEYS
--   1   update:<message>  string: see lib/updates.lua
--
-- ARGV
--   order of the state
--
-- Returns the order of the newest state that the message has shown.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/updates

local message = read_message(KEYS[1])
message.done = math.max(message.done, tonumber(ARGV[1]))
message.newest = math.max(message.newest, message.done)
write_message(KEYS[1], message, 0)
return message.done
