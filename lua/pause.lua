-- pause.lua: lets a destination rest, for all instances. A longer pause in force stays. No burst follows a pause.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2  pauses   sorted set: destination -> until when it takes no message
--   3  paces    sorted set: destination -> see pace.lua
--
-- ARGV
--   destination, duration, how far a burst may run ahead of the interval (see pace.lua; both microseconds)
--
-- Returns until when the destination rests.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local calls_key, pauses_key, paces_key = KEYS[1], KEYS[2], KEYS[3]
local destination, duration, ahead = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- A pause that lies further ahead was written by a clock that had run ahead.
local FARTHEST = 2 * 3600 * SECOND

local now = deployment_time(calls_key)
local rest_until = now + duration
local current = tonumber(redis.call('ZSCORE', pauses_key, destination) or 0)
if current > rest_until and current <= now + FARTHEST then
  return current
end
local pace_end = math.max(tonumber(redis.call('ZSCORE', paces_key, destination) or 0), rest_until + ahead)

local trim = new_trimmer()
local function keep(key, time)
  trim(key, integer(now), 1)
  redis.call('ZADD', key, integer(time), destination)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', key, milliseconds(tonumber(last) - now))
end
check_rights(pauses_key, duration)
if ahead > 0 then
  check_rights(paces_key, duration + ahead)
  keep(paces_key, pace_end)
end
keep(pauses_key, rest_until)
return rest_until
