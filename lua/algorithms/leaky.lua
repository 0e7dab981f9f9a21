-- leaky.lua: strict spacing (GCRA without a burst). One slot each window / count; a cost of n takes n such intervals.
--
-- Promise: exact; the time of the next slot is exact, in whole microseconds, rounded up. Burst at the edge: none. Memory:
-- two numbers.

algorithms.leaky = { times_admissions = true }

function algorithms.leaky.read(meter)
  local state = load_numbers(meter.key)
  if state and state[1] <= meter.now + TOLERANCE then
    meter.last, meter.cost = state[1], state[2]
  else
    meter.last, meter.cost = 0, 0
  end
end

-- The quotient is taken apart, since cost × window may be more than a number holds exactly. A cost from before the limit was
-- lowered counts as all that it has now.
local function free_at(meter)
  local count, window = meter.limit.count, meter.limit.window
  local cost = math.min(meter.cost, count)
  local rest = math.fmod(window, count)
  return meter.last + cost * ((window - rest) / count) + math.ceil(cost * rest / count)
end

function algorithms.leaky.wait(meter)
  local time = free_at(meter) - meter.now
  if time > 0 then
    return meter.limit, time
  end
end

function algorithms.leaky.take(meter, event)
  meter.last, meter.cost = meter.now, event.cost
end

function algorithms.leaky.write(meter)
  save_numbers(meter.key, meter.limit.window + TOLERANCE, meter.last, meter.cost)
end

-- Only the last one can be given back: after it there was none.
function algorithms.leaky.give_back(meter, event)
  if event.taken == meter.last then
    meter.cost = 0
  end
end

function algorithms.leaky.restore(meter, event, at)
  if at >= meter.last then
    meter.last, meter.cost = at, event.cost
  end
end

function algorithms.leaky.used(meter)
  if meter.limit.count == 0 then
    return 0
  end
  return math.ceil(math.max(0, free_at(meter) - meter.now) * meter.limit.count / meter.limit.window)
end
