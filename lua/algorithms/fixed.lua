-- fixed.lua: the fixed window. At most `count` slots in each window; windows begin at multiples of their length since 1970.
--
-- Promise: exact for each such window; the time of the next slot is exact. Burst at the edge: up to twice the count within
-- one window's length, around the moment where two windows meet. Memory: two numbers.

algorithms.fixed = { times_admissions = true }

function algorithms.fixed.read(meter)
  local start = meter.now - meter.now % meter.limit.window
  local state = load_numbers(meter.key)
  meter.start, meter.used = start, 0
  -- A window that is still to come was begun by a clock that ran ahead.
  if state and state[1] >= start and state[1] <= meter.now + TOLERANCE then
    meter.start, meter.used = state[1], state[2]
  end
end

function algorithms.fixed.wait(meter, cost)
  if meter.used + cost > meter.limit.count then
    return meter.limit, meter.start + meter.limit.window - meter.now
  end
end

function algorithms.fixed.take(meter, event)
  meter.used = meter.used + event.cost
end

function algorithms.fixed.write(meter)
  save_numbers(meter.key, meter.limit.window + TOLERANCE, meter.start, meter.used)
end

function algorithms.fixed.give_back(meter, event)
  if event.taken >= meter.start then
    meter.used = math.max(0, meter.used - event.cost)
  end
end

function algorithms.fixed.restore(meter, event, at)
  if at >= meter.start then
    meter.used = meter.used + event.cost
  end
end

function algorithms.fixed.used(meter)
  return meter.used
end
