-- mention.lua: lets one event of a path mention people, and no other until a time has passed. The same event may again: its
-- first message may not have gone out. One whose message certainly did not gives the mention back.
--
-- KEYS
--   1  mention   string: the event that mentioned last
--
-- ARGV
--   identity of the event, duration (microseconds; 0 gives back what the event has)
--
-- Returns 0 if it may not, 1 if it has the mention since before, or has given it back, 2 if it has it from now on.

local mention_key = KEYS[1]
local event, duration = ARGV[1], tonumber(ARGV[2])

local holder = redis.call('GET', mention_key)
if holder and holder ~= event or not holder and duration == 0 then
  return 0
elseif duration == 0 then
  redis.call('PEXPIRE', mention_key, 0)
  return 1
elseif holder then
  return 1
end
redis.call('SET', mention_key, event, 'PX', milliseconds(duration))
return 2
