-- leaky.lua: strict spacing (GCRA without a burst). One slot in each window / count; a cost of n takes n such intervals.
--
-- Promise: exact. The time of the next slot is exact, in whole microseconds, rounded up. Burst at the edge: none. Memory: two
-- numbers.

algorithms.leaky = { times_admissions = true }

function algorithms.leaky.read(bucket)
  local state = load_numbers(bucket.key)
  if state and state[1] <= bucket.now + TOLERANCE then
    bucket.last, bucket.cost = state[1], state[2]
  else
    bucket.last, bucket.cost = 0, 0
  end
end

-- Returns when the intervals of the last event are over. cost × window may exceed what a number holds exactly, so the quotient
-- and the remainder of window / count are multiplied separately. A cost above a count that was lowered counts as the count.
local function free_at(bucket)
  local count, window = bucket.limit.count, bucket.limit.window
  local cost = math.min(bucket.cost, count)
  local remainder = math.fmod(window, count)
  return bucket.last + cost * ((window - remainder) / count) + math.ceil(cost * remainder / count)
end

function algorithms.leaky.wait(bucket)
  local time = free_at(bucket) - bucket.now
  if time > 0 then
    return bucket.limit, time
  end
end

function algorithms.leaky.take(bucket, event)
  bucket.last, bucket.cost = bucket.now, event.cost
end

function algorithms.leaky.write(bucket)
  save_numbers(bucket.key, bucket.limit.window + TOLERANCE, bucket.last, bucket.cost)
end

-- The last event's slots alone can return: earlier events hold no slots any more.
function algorithms.leaky.give_back(bucket, event)
  if event.taken == bucket.last then
    bucket.cost = 0
  end
end

function algorithms.leaky.restore(bucket, event, at)
  if at >= bucket.last then
    bucket.last, bucket.cost = at, event.cost
  end
end

function algorithms.leaky.used(bucket)
  if bucket.limit.count == 0 then
    return 0
  end
  return math.ceil(math.max(0, free_at(bucket) - bucket.now) * bucket.limit.count / bucket.limit.window)
end
