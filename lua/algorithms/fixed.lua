-- fixed.lua: the fixed window. At most `count` slots in each window. Windows begin at multiples of their length since 1970.
--
-- Promise: exact for each such window. The time of the next slot is exact. Burst at the edge: up to twice the count within the
-- length of one window, where two windows meet. Memory: two numbers.

algorithms.fixed = { times_admissions = true }

function algorithms.fixed.read(bucket)
  local start = bucket.now - bucket.now % bucket.limit.window
  local state = load_numbers(bucket.key)
  bucket.start, bucket.used = start, 0
  -- The state is of a later window if a clock ran ahead.
  if state and state[1] >= start and state[1] <= bucket.now + TOLERANCE then
    bucket.start, bucket.used = state[1], state[2]
  end
end

function algorithms.fixed.wait(bucket, cost)
  if bucket.used + cost > bucket.limit.count then
    return bucket.limit, bucket.start + bucket.limit.window - bucket.now
  end
end

function algorithms.fixed.take(bucket, event)
  bucket.used = bucket.used + event.cost
end

function algorithms.fixed.write(bucket)
  save_numbers(bucket.key, bucket.limit.window + TOLERANCE, bucket.start, bucket.used)
end

function algorithms.fixed.give_back(bucket, event)
  if event.taken >= bucket.start then
    bucket.used = math.max(0, bucket.used - event.cost)
  end
end

function algorithms.fixed.restore(bucket, event, at)
  if at >= bucket.start then
    bucket.used = bucket.used + event.cost
  end
end

function algorithms.fixed.used(bucket)
  return bucket.used
end
