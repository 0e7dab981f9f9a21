-- budgets.lua: counts what is used of the budgets of the workspace, the updates and the look-ups, and what waits for them. Writes
-- nothing.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   pauses   sorted set: channel -> end of its pause
--   3   posts    sorted set: post of the workspace -> its slot time
--   4   asked    sorted set: channel that waits for the workspace -> until when it counts
--   5   updates  sorted set: update -> its slot time
--   6   lookups  sorted set: look-up -> its slot time
--
-- ARGV
--   windows of the workspace, the updates and the look-ups (microseconds)
--
-- Returns for the workspace, the updates and the look-ups: requests of the last window, what waits (channels, reserved requests),
-- remaining pause (microseconds).
--
-- Errors: WRONGTYPE is raised.

--@include lib/destinations

local calls_key, pauses_key, posts_key, asked_key, updates_key, lookups_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

local now = deployment_time(calls_key)
local time = integer(now)
local function used(key, window)
  return redis.call('ZCOUNT', key, '(' .. integer(now - tonumber(window)), time)
end
local function reserved(key)
  return redis.call('ZCOUNT', key, '(' .. time, '+inf')
end
local function pause(name)
  return math.max(0, recorded_time(pauses_key, name, now + MOST_AHEAD) - now)
end
return {
  used(posts_key, ARGV[1]), redis.call('ZCOUNT', asked_key, time, '+inf'), pause(WORKSPACE),
  used(updates_key, ARGV[2]), reserved(updates_key), pause(UPDATES),
  used(lookups_key, ARGV[3]), reserved(lookups_key), pause(LOOKUPS),
}
