-- inflight.lua: the concurrency limit. At most `count` slots belong to deliveries under way; one comes back when its
-- delivery ends or, if its worker died, after the window, but not before its lease has lapsed.
--
-- Promise: exact. The time of the next slot is the latest: a delivery may end sooner. Burst at the edge: none. Memory: one
-- member of a sorted set for each delivery under way, about 100 bytes.
--
-- The sorted set holds slot of a stored message's event -> when it comes back by itself.

algorithms.inflight = { follows_delivery = true }

function algorithms.inflight.read(meter)
  meter.kept = math.max(meter.limit.window, meter.lease)
  meter.upto = integer(meter.now + meter.kept + TOLERANCE) -- what lies beyond it, a clock that ran ahead has left
  meter.stored = redis.call('ZCOUNT', meter.key, '(' .. meter.time, meter.upto)
  meter.used = meter.stored
end

-- When the n-th of the slots comes back by itself. Those of this call all do at its end.
local function comes_back(meter, n)
  if not meter.pending then
    local offset = integer(n - 1)
    local reply = redis.call('ZRANGE', meter.key, '(' .. meter.time, meter.upto, 'BYSCORE', 'LIMIT', offset, 1, 'WITHSCORES')
    return tonumber(reply[2])
  end
  local times = {}
  local stored = redis.call('ZRANGE', meter.key, '(' .. meter.time, meter.upto, 'BYSCORE', 'WITHSCORES')
  for i = 1, #stored, 2 do
    if not meter.pending[stored[i]] then
      times[#times + 1] = tonumber(stored[i + 1])
    end
  end
  for _ in pairs(meter.pending) do
    times[#times + 1] = meter.now + meter.kept
  end
  table.sort(times)
  return times[n]
end

function algorithms.inflight.wait(meter, cost)
  local leaving = meter.used + cost - meter.limit.count
  if leaving > 0 then
    return meter.limit, comes_back(meter, leaving) - meter.now
  end
end

-- Slots that this call writes.
local function add_slots(meter, event)
  meter.added, meter.pending = meter.added or {}, meter.pending or {}
  for slot = 1, event.cost do
    local member = slot_member(event.message, slot)
    meter.added[#meter.added + 1] = integer(meter.now + meter.kept)
    meter.added[#meter.added + 1] = member
    meter.pending[member] = true
  end
end

function algorithms.inflight.take(meter, event)
  add_slots(meter, event)
  meter.used = meter.used + event.cost
end

-- Whether a delivery that goes on, or is taken over, still has its slots. Those that do not count may be others' by now.
function algorithms.inflight.holds(meter, event)
  local time = tonumber(redis.call('ZSCORE', meter.key, event.message) or 0)
  return time > meter.now and time <= tonumber(meter.upto)
end

-- Keeps slots that a delivery has.
function algorithms.inflight.renew(meter, event)
  add_slots(meter, event)
end

function algorithms.inflight.trim(meter, trim)
  trim(meter.key, meter.time, #(meter.added or {}) / 2)
end

function algorithms.inflight.write(meter)
  if meter.added then
    in_pieces('ZADD', meter.key, meter.added)
    redis.call('PEXPIRE', meter.key, milliseconds(meter.kept + TOLERANCE))
  end
end

function algorithms.inflight.extend(meter, event)
  local back = integer(meter.now + meter.kept)
  for slot = 1, event.cost do
    redis.call('ZADD', meter.key, 'XX', back, slot_member(event.message, slot))
  end
  redis.call('PEXPIRE', meter.key, milliseconds(meter.kept + TOLERANCE))
end

function algorithms.inflight.give_back(meter, event)
  for slot = 1, event.cost do
    redis.call('ZREM', meter.key, slot_member(event.message, slot))
  end
end

function algorithms.inflight.restore(meter, event)
  if not event.delivered then
    algorithms.inflight.take(meter, event)
  end
end

function algorithms.inflight.used(meter)
  return meter.used
end
