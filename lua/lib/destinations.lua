-- destinations.lua: sorted sets with channel -> time, for the scripts in pacing/.

-- How far ahead of the clock a pause or a slot time may lie: pauses and waits last an hour at most. A time further ahead was
-- written by a clock that had run ahead.
local MOST_AHEAD = 2 * 3600 * SECOND

-- Records the time of a channel, removes times that have passed, and keeps the set until the last of its times.
local function record_time(trim, key, destination, time, now)
  trim(key, integer(now), 1)
  redis.call('ZADD', key, integer(time), destination)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', key, milliseconds(tonumber(last) - now))
end
