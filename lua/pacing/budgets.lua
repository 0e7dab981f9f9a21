-- budgets.lua: counts what is used of the budgets of the workspace, the updates, the look-ups and some channels, and what waits for
-- them. Writes nothing.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   pauses   sorted set: channel -> end of its pause
--   3   posts    sorted set: post of the workspace -> its slot time
--   4   asked    sorted set: channel that waits for the workspace -> until when it counts
--   5   updates  sorted set: update -> its slot time
--   6   lookups  sorted set: look-up -> its slot time
--   7   paces    sorted set: channel -> its TAT (see pace.lua)
--   of each channel:
--   +1  askers:…  string: who waits for the channel (lib/askers.lua)
--
-- ARGV
--   windows of the workspace, the updates and the look-ups; interval and burst of a channel (times in microseconds)
--   names of the channels
--
-- Returns for the workspace, the updates and the look-ups: requests of the last window, what waits (channels, reserved requests),
-- remaining pause (microseconds). Then returns for each channel: the time until it takes its next post, 0 if its pace allows a post
-- now (microseconds); the number of its askers, 0 if its pace allows a post now.
--
-- Errors: WRONGTYPE is raised.

--@include lib/destinations lib/askers

-- How many keys and arguments precede those of the channels.
local SHARED_KEYS, SHARED_ARGUMENTS = 7, 5

local calls_key, pauses_key, posts_key, asked_key, updates_key, lookups_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local paces_key = KEYS[7]
local interval, burst = tonumber(ARGV[4]), tonumber(ARGV[5])
local tolerance = (burst - 1) * interval

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
local counted = {
  used(posts_key, ARGV[1]), redis.call('ZCOUNT', asked_key, time, '+inf'), pause(WORKSPACE),
  used(updates_key, ARGV[2]), reserved(updates_key), pause(UPDATES),
  used(lookups_key, ARGV[3]), reserved(lookups_key), pause(LOOKUPS),
}

-- Posts are reserved at most a second ahead. A later TAT belongs to a pause, or to a clock that had run ahead.
local farthest = now + tolerance + interval + SECOND
for i = 1, #ARGV - SHARED_ARGUMENTS do
  local wait = math.max(0, recorded_time(paces_key, ARGV[SHARED_ARGUMENTS + i], farthest) - tolerance - now)
  local asking = 0
  if wait > 0 then
    local _, askers = load_askers(KEYS[SHARED_KEYS + i], now)
    for _ in pairs(askers) do
      asking = asking + 1
    end
  end
  counted[#counted + 1] = wait
  counted[#counted + 1] = asking
end
return counted
