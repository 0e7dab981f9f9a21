-- token.lua: the token bucket. It holds `burst` tokens, is refilled continuously with `count` in each window, and gives
-- one for each slot.
--
-- Promise: exact: in any span of time no more than burst + count × span / window slots. The time of the next slot is
-- exact, in whole microseconds, rounded up. Burst at the edge: `burst`. Memory: at most LOWS pairs of numbers and three more. A token that is returned late brings what the bucket would have had
-- room for ever since; that is exact for the LOWS latest dips, and less than exact, never more, before them.
--
-- The bucket is kept as whole numbers, in units of a token's share in a microsecond, token / window: what was missing at a
-- time. A full bucket is count × window of them, which is at most MOST: limits are refused where it would be more. A dip is when a token was taken and how much was missing then, before it was.

algorithms.token = { times_admissions = true }

local LOWS = 8

-- The most that Lua's numbers count exactly. What is missing beyond it, because more was admitted elsewhere, is left out.
local MOST = 2 ^ 53

-- What is missing from a full bucket at a time.
local function missing(meter, at)
  return meter.owed - math.max(0, at - meter.since) * meter.limit.count
end

-- Counts from a later time on.
local function advance(meter, at)
  local owed = missing(meter, at)
  if owed <= 0 then
    meter.full, meter.since, meter.owed, meter.lows = at, at, 0, {}
    return
  end
  meter.since, meter.owed = math.max(meter.since, at), owed
end

function algorithms.token.read(meter)
  local state = load_numbers(meter.key)
  if not state or state[2] > meter.now + TOLERANCE then
    state = { 0, 0, 0 } -- full since long ago
  end
  meter.full, meter.since, meter.owed, meter.lows = state[1], state[2], state[3], {}
  for i = 4, #state, 2 do
    meter.lows[#meter.lows + 1] = { at = state[i], missing = state[i + 1] }
  end
end

function algorithms.token.wait(meter, cost)
  advance(meter, meter.now)
  local count, needed = meter.limit.count, meter.owed + (cost - meter.limit.burst) * meter.limit.window
  if needed > math.max(0, meter.now - meter.since) * count then
    local elapsed = math.ceil(needed / count)
    if elapsed * count < needed then
      elapsed = elapsed + 1 -- what rounding took
    end
    return meter.limit, meter.since + elapsed - meter.now
  end
end

-- Notes how much is missing, where that is less than ever since: an earlier dip that was no deeper says nothing more.
local function note_low(meter, at)
  local lows, here = {}, missing(meter, at)
  for _, low in ipairs(meter.lows) do
    if low.missing < here then
      lows[#lows + 1] = low
    end
  end
  lows[#lows + 1] = { at = at, missing = here }
  if #lows > LOWS then
    lows[2].missing = lows[1].missing
    table.remove(lows, 1)
  end
  meter.lows = lows
end

local function take_at(meter, at, cost)
  if meter.owed > 0 then
    note_low(meter, at)
  end
  meter.owed = math.min(meter.owed + cost * meter.limit.window, MOST)
end

function algorithms.token.take(meter, event)
  take_at(meter, meter.now, event.cost)
end

function algorithms.token.write(meter)
  local numbers = { meter.full, meter.since, meter.owed }
  for _, low in ipairs(meter.lows) do
    numbers[#numbers + 1] = low.at
    numbers[#numbers + 1] = low.missing
  end
  save_numbers(meter.key, meter.limit.window + TOLERANCE, unpack(numbers))
end

-- A bucket that has been full since the tokens were taken has no room for them, and one that nearly was, not for all.
function algorithms.token.give_back(meter, event)
  if event.taken < meter.full then
    return
  end
  local returned = math.min(event.cost * meter.limit.window, math.max(0, missing(meter, meter.now)))
  for _, low in ipairs(meter.lows) do
    if low.at > event.taken then
      returned = math.min(returned, low.missing)
    end
  end
  for _, low in ipairs(meter.lows) do
    if low.at > event.taken then
      low.missing = low.missing - returned
    end
  end
  meter.owed = meter.owed - returned
end

function algorithms.token.restore(meter, event, at)
  if at > meter.since then
    advance(meter, at)
  end
  take_at(meter, math.max(at, meter.since), event.cost)
end

function algorithms.token.used(meter)
  return math.ceil(math.max(0, missing(meter, meter.now)) / meter.limit.window)
end
