-- counter.lua: the sliding counter. At most `count` slots in a rolling window, by an estimate: the slots of the current fixed
-- window, and the slots of the window before it in proportion to how much of that window the rolling window covers.
--
-- Promise: approximate, as if the slots of the window before had been taken evenly. The time of the next slot has this
-- error too. Burst at the edge: below twice the count, if events took the slots of the window before at its end. Memory: three
-- numbers.

algorithms.counter = { times_admissions = true }

function algorithms.counter.read(bucket)
  local start = bucket.now - bucket.now % bucket.limit.window
  local state = load_numbers(bucket.key)
  bucket.start, bucket.current, bucket.previous = start, 0, 0
  if not state or state[1] > bucket.now + TOLERANCE then
    return
  end
  if state[1] >= start then -- later than start if a clock ran ahead
    bucket.start, bucket.current, bucket.previous = state[1], state[2], state[3]
  elseif state[1] == start - bucket.limit.window then
    bucket.previous = state[2]
  end
end

-- Returns how many slots of a window the rolling window covers, some time after the end of that window.
local function covered(slots, window, elapsed)
  return slots * (window - math.max(0, elapsed)) / window
end

-- Returns how long after its end the rolling window covers no more than `room` slots of a window.
local function time_until_covered(slots, window, room)
  local elapsed = math.ceil(window * (slots - room) / slots)
  while covered(slots, window, elapsed) > room do
    elapsed = elapsed + 1 -- corrects rounding
  end
  return elapsed
end

function algorithms.counter.wait(bucket, cost)
  local room = bucket.limit.count - cost - bucket.current
  if covered(bucket.previous, bucket.limit.window, bucket.now - bucket.start) <= room then
    return nil
  end
  if room >= 0 then
    return bucket.limit, bucket.start + time_until_covered(bucket.previous, bucket.limit.window, room) - bucket.now
  end
  local next_start = bucket.start + bucket.limit.window
  return bucket.limit, next_start + time_until_covered(bucket.current, bucket.limit.window, bucket.limit.count - cost) - bucket.now
end

function algorithms.counter.take(bucket, event)
  bucket.current = bucket.current + event.cost
end

function algorithms.counter.write(bucket)
  save_numbers(bucket.key, 2 * bucket.limit.window + TOLERANCE, bucket.start, bucket.current, bucket.previous)
end

-- Adds slots to the window that contains a time.
local function change(bucket, at, slots)
  if at >= bucket.start then
    bucket.current = math.max(0, bucket.current + slots)
  elseif at >= bucket.start - bucket.limit.window then
    bucket.previous = math.max(0, bucket.previous + slots)
  end
end

function algorithms.counter.give_back(bucket, event)
  change(bucket, event.taken, -event.cost)
end

function algorithms.counter.restore(bucket, event, at)
  change(bucket, at, event.cost)
end

function algorithms.counter.used(bucket)
  return bucket.current + math.ceil(covered(bucket.previous, bucket.limit.window, bucket.now - bucket.start))
end
