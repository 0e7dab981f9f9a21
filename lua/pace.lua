-- pace.lua: reserves the next moment at which a destination takes a message, for all instances: moments are spaced by an
-- interval, with a burst after a rest (GCRA), and none lies where the destination rests.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2  pauses   sorted set: destination -> until when it takes no message
--   3  paces    sorted set: destination -> when, at its interval, all that is reserved will be through
--
-- ARGV
--   destination, interval, burst, horizon, time for which the caller knows that the destination rests
--     times in microseconds; an interval of 0 is no spacing; a moment beyond the horizon is not reserved
--
-- Returns the time until the moment (microseconds), and whether it is reserved (1 or 0).
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local calls_key, pauses_key, paces_key = KEYS[1], KEYS[2], KEYS[3]
local destination, interval, burst = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local horizon, known_rest = tonumber(ARGV[4]), tonumber(ARGV[5])
local ahead = (burst - 1) * interval -- how far a burst may run ahead of the interval

-- What lies further ahead was written by a clock that had run ahead: pauses and horizons last an hour at most.
local farthest = 2 * 3600 * SECOND + ahead + interval

local now = deployment_time(calls_key)
local function recorded(key)
  local time = tonumber(redis.call('ZSCORE', key, destination) or 0)
  return time <= now + farthest and time or 0
end
local rest_until, pace_end = math.max(recorded(pauses_key), now + known_rest), recorded(paces_key)
if rest_until > now then
  pace_end = math.max(pace_end, rest_until + ahead) -- no burst at the end of a pause
end
local moment = math.max(now, rest_until)
if interval > 0 then
  moment = math.max(moment, pace_end - ahead)
end
local wait = moment - now
if wait > horizon then
  return { wait, 0 }
end
if interval > 0 then
  check_rights(paces_key, farthest)
  new_trimmer()(paces_key, integer(now), 1)
  redis.call('ZADD', paces_key, integer(math.max(pace_end, moment) + interval), destination)
  local last = tonumber(redis.call('ZRANGE', paces_key, -1, -1, 'WITHSCORES')[2])
  redis.call('PEXPIRE', paces_key, milliseconds(last - now))
end
return { wait, 1 }
