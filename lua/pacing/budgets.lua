-- budgets.lua: counts what is used of the budgets of the workspace and of the updates, and what waits for them. Writes nothing.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   pauses   sorted set: channel -> end of its pause
--   3   posts    sorted set: post of the workspace -> its slot time
--   4   asked    sorted set: channel that waits for the workspace -> until when it counts
--   5   updates  sorted set: update -> its slot time
--
-- ARGV
--   windows of the workspace and of the updates (microseconds)
--
-- Returns for the workspace and for the updates: requests of the last window, what waits (channels, reserved updates), remaining
-- pause (microseconds).
--
-- Errors: WRONGTYPE is raised.

--@include lib/destinations

local calls_key, pauses_key, posts_key, asked_key, updates_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local post_window, update_window = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = deployment_time(calls_key)
local time = integer(now)
local function used(key, window)
  return redis.call('ZCOUNT', key, '(' .. integer(now - window), time)
end
local function pause(name)
  return math.max(0, recorded_time(pauses_key, name, now + MOST_AHEAD) - now)
end
return {
  used(posts_key, post_window), redis.call('ZCOUNT', asked_key, time, '+inf'), pause(WORKSPACE),
  used(updates_key, update_window), redis.call('ZCOUNT', updates_key, '(' .. time, '+inf'), pause(UPDATES),
}
