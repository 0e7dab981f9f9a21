-- token.lua: the token bucket. It holds `burst` tokens and is refilled continuously with `count` tokens in each window. A slot
-- takes one token.
--
-- Promise: exact: in any span of time at most burst + count × span / window slots. The time of the next slot is exact, in whole
-- microseconds, rounded up. Burst at the edge: `burst`. Memory: three numbers and at most LOWS pairs of numbers.
--
-- A bucket is full a window after its latest change, even if more was missing than an empty bucket lacks, by a larger burst before or by
-- admissions without Redis. So nobody waits for longer than a window, and the bucket is full when its key expires.
--
-- The state counts what is missing from a full bucket, in whole units of token / window: a token is `window` units, and `count`
-- units are refilled in each microsecond. The parser of limits rejects count × window above MOST. A low records the time when an event
-- took a token, and how much was missing just before. A returned token brings at most what the bucket had room for at all times since
-- then. That is exact for the latest LOWS lows, and never too much before them.

algorithms.token = { times_admissions = true }

local LOWS = 8

-- The largest number that Lua counts exactly. Missing units beyond it, from admissions made without Redis, are left out.
local MOST = 2 ^ 53

-- Returns how much is missing at a time.
local function missing(bucket, at)
  local elapsed = math.max(0, at - bucket.since)
  return elapsed < bucket.limit.window and bucket.owed - elapsed * bucket.limit.count or 0
end

-- Moves the state to a later time.
local function advance(bucket, at)
  local owed = missing(bucket, at)
  if owed <= 0 then
    bucket.full, bucket.since, bucket.owed, bucket.lows = at, at, 0, {}
    return
  end
  bucket.since, bucket.owed = math.max(bucket.since, at), owed
end

function algorithms.token.read(bucket)
  local state = load_numbers(bucket.key)
  if not state or state[2] > bucket.now + TOLERANCE then
    state = { 0, 0, 0 } -- a full bucket
  end
  bucket.full, bucket.since, bucket.owed, bucket.lows = state[1], state[2], state[3], {}
  for i = 4, #state, 2 do
    bucket.lows[#bucket.lows + 1] = { at = state[i], missing = state[i + 1] }
  end
end

function algorithms.token.wait(bucket, cost)
  local now, count, window = bucket.now, bucket.limit.count, bucket.limit.window
  local needed = math.max(0, missing(bucket, now)) + (cost - bucket.limit.burst) * window
  if needed > 0 then
    local elapsed = math.ceil(needed / count)
    if elapsed * count < needed then
      elapsed = elapsed + 1 -- corrects rounding
    end
    return bucket.limit, math.min(math.max(bucket.since, now) + elapsed, bucket.since + window) - now
  end
end

-- Records how much is missing. Earlier lows that are not lower than this one have no effect any more.
local function note_low(bucket, at)
  local lows, here = {}, missing(bucket, at)
  for _, low in ipairs(bucket.lows) do
    if low.missing < here then
      lows[#lows + 1] = low
    end
  end
  lows[#lows + 1] = { at = at, missing = here }
  if #lows > LOWS then
    lows[2].missing = lows[1].missing
    table.remove(lows, 1)
  end
  bucket.lows = lows
end

local function take_at(bucket, at, cost)
  if bucket.owed > 0 then
    note_low(bucket, at)
  end
  bucket.owed = math.min(bucket.owed + cost * bucket.limit.window, MOST)
end

function algorithms.token.take(bucket, event)
  advance(bucket, bucket.now)
  take_at(bucket, bucket.now, event.cost)
end

function algorithms.token.write(bucket)
  local numbers = { bucket.full, bucket.since, bucket.owed }
  for _, low in ipairs(bucket.lows) do
    numbers[#numbers + 1] = low.at
    numbers[#numbers + 1] = low.missing
  end
  save_numbers(bucket.key, bucket.limit.window + TOLERANCE, unpack(numbers))
end

-- Returns no tokens if the bucket has been full since then, and fewer if it had no room for all of them.
function algorithms.token.give_back(bucket, event)
  if event.taken < bucket.full then
    return
  end
  local returned = math.min(event.cost * bucket.limit.window, math.max(0, missing(bucket, bucket.now)))
  for _, low in ipairs(bucket.lows) do
    if low.at > event.taken then
      returned = math.min(returned, low.missing)
    end
  end
  for _, low in ipairs(bucket.lows) do
    if low.at > event.taken then
      low.missing = low.missing - returned
    end
  end
  bucket.owed = bucket.owed - returned
  advance(bucket, bucket.now) -- by the limit that the event took its tokens from, which another one may have replaced
end

function algorithms.token.restore(bucket, event, at)
  if at > bucket.since then
    advance(bucket, at)
  end
  take_at(bucket, math.max(at, bucket.since), event.cost)
end

function algorithms.token.used(bucket)
  return math.ceil(math.max(0, missing(bucket, bucket.now)) / bucket.limit.window)
end
