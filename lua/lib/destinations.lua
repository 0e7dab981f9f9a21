-- destinations.lua: sorted sets with channel -> time, for the scripts in pacing/.

-- What is paused beside channels. No channel has such a name.
local WORKSPACE, UPDATES, LOOKUPS = '\nworkspace', '\nupdates', '\nlookups'

-- How far ahead of the clock a pause or a slot time may lie: pauses and waits last an hour at most. A time further ahead was
-- written by a clock that had run ahead.
local MOST_AHEAD = 2 * 3600 * SECOND

-- Returns the time of a name, 0 if there is none or if it lies after `farthest`.
local function recorded_time(key, name, farthest)
  local time = tonumber(redis.call('ZSCORE', key, name) or 0)
  return time <= farthest and time or 0
end

-- Returns the TAT of a channel (see pace.lua), 0 if there is none. Posts are reserved at most a second ahead and after pauses. A later TAT
-- was written by a clock that had run ahead.
local function recorded_tat(key, channel, earliest, tolerance, interval)
  return recorded_time(key, channel, earliest + tolerance + interval + TOLERANCE)
end

-- Records the time of a name, removes times that have passed, and keeps the set until the last of its times.
local function record_time(trim, key, name, time, now)
  trim(key, integer(now), 1)
  redis.call('ZADD', key, integer(time), name)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', key, milliseconds(tonumber(last) - now))
end
