-- mention.lua: lets one event of a path mention people, and no other until a time has passed. The same event may again: its
-- first message may not have gone out.
--
-- KEYS
--   1  mention   string: the event that mentioned last
--
-- ARGV
--   record of the event, duration (microseconds)
--
-- Returns 1 if it may, else 0.

local mention_key = KEYS[1]
local record, duration = ARGV[1], tonumber(ARGV[2])

local holder = redis.call('GET', mention_key)
if holder then
  return holder == record and 1 or 0
end
redis.call('SET', mention_key, record, 'PX', milliseconds(duration))
return 1
