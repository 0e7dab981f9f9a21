-- mention.lua: lets one event of a path mention people, and then no other event for a time.
--
-- The event that has the mention may ask again, since its first message may not have been sent. An event whose message certainly
-- was not sent returns the mention.
--
-- KEYS
--   1   mention:…  string: identity of the event that has the mention
--
-- ARGV
--   identity of the event, duration (microseconds; 0 returns the mention that the event has)
--
-- Returns 0 if the event may not mention people, 1 if it has had the mention before or has returned it, 2 if it has just got it.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

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
