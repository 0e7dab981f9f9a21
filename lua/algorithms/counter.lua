-- counter.lua: the sliding counter. At most `count` slots in a rolling window, as estimated from the slots taken in the
-- current fixed window and, by the share that the rolling window still covers, in the one before it.
--
-- Promise: approximate, as if the previous window's slots had been taken evenly; the time of the next slot is estimated
-- in the same way. Burst at the edge: below twice the count, when the previous window's slots came at its end. Memory:
-- three numbers, whatever the limit.

algorithms.counter = { times_admissions = true }

function algorithms.counter.read(meter)
  local start = meter.now - meter.now % meter.limit.window
  local state = load_numbers(meter.key)
  meter.start, meter.current, meter.previous = start, 0, 0
  if not state or state[1] > meter.now + TOLERANCE then
    return
  end
  if state[1] >= start then -- beyond it if a clock ran ahead
    meter.start, meter.current, meter.previous = state[1], state[2], state[3]
  elseif state[1] == start - meter.limit.window then
    meter.previous = state[2]
  end
end

-- The slots of a window that the rolling window still covers, some time after that window's end.
local function covered(slots, window, elapsed)
  return slots * (window - math.max(0, elapsed)) / window
end

-- How long after its end a window has to be until no more than `room` of its slots are covered.
local function time_until_covered(slots, window, room)
  local elapsed = math.ceil(window * (slots - room) / slots)
  while covered(slots, window, elapsed) > room do
    elapsed = elapsed + 1 -- what rounding took
  end
  return elapsed
end

function algorithms.counter.wait(meter, cost)
  local room = meter.limit.count - cost - meter.current
  if covered(meter.previous, meter.limit.window, meter.now - meter.start) <= room then
    return nil
  end
  if room >= 0 then
    return meter.limit, meter.start + time_until_covered(meter.previous, meter.limit.window, room) - meter.now
  end
  local next_start = meter.start + meter.limit.window
  return meter.limit, next_start + time_until_covered(meter.current, meter.limit.window, meter.limit.count - cost) - meter.now
end

function algorithms.counter.take(meter, event)
  meter.current = meter.current + event.cost
end

function algorithms.counter.write(meter)
  save_numbers(meter.key, 2 * meter.limit.window + TOLERANCE, meter.start, meter.current, meter.previous)
end

-- Adds to the window in which a time lies.
local function change(meter, at, slots)
  if at >= meter.start then
    meter.current = math.max(0, meter.current + slots)
  elseif at >= meter.start - meter.limit.window then
    meter.previous = math.max(0, meter.previous + slots)
  end
end

function algorithms.counter.give_back(meter, event)
  change(meter, event.taken, -event.cost)
end

function algorithms.counter.restore(meter, event, at)
  change(meter, at, event.cost)
end

function algorithms.counter.used(meter)
  return meter.current + math.ceil(covered(meter.previous, meter.limit.window, meter.now - meter.start))
end
