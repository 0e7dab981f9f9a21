-- pause.lua: lets a destination rest, for all instances. A longer pause in force stays.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2  pauses   sorted set: destination -> until when it takes no message
--
-- ARGV
--   destination, duration (microseconds)
--
-- Returns until when the destination rests.

local calls_key, pauses_key = KEYS[1], KEYS[2]
local destination, duration = ARGV[1], tonumber(ARGV[2])

local now = deployment_time(calls_key)
local rest_until = now + duration
local current = redis.call('ZSCORE', pauses_key, destination)
if current and tonumber(current) > rest_until then
  return tonumber(current)
end

check_rights(pauses_key, duration)
redis.call('ZREMRANGEBYSCORE', pauses_key, '-inf', integer(now))
redis.call('ZADD', pauses_key, integer(rest_until), destination)
local last = redis.call('ZRANGE', pauses_key, -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIRE', pauses_key, milliseconds(tonumber(last) - now))
return rest_until
