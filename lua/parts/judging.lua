-- judging.lua: how decide.lua judges the events of a batch. Nothing is written here.

-- The verdicts.
local ADMITTED = 1 -- recorded and leased to the caller
local DENIED = 2 -- some limit is full
local NEVER_FITS = 3 -- the cost is above what some limit ever has
local REPEATED = 4 -- admitted earlier, its lease has ended; leased to the caller now. Its limit is 1 if it is in doubt.
local LEASED = 5 -- someone else is delivering it, or it has to wait until it may be delivered again
local DONE = 6 -- this stored message was delivered
local DUPLICATE = 7 -- another stored message with this ID was admitted
local UNKNOWN = 8 -- asked with cost 0, and nothing is known

-- The number of a new answer.
local function answer(batch, verdict, limit, duration)
  local answers = batch.answers
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = verdict, limit, duration
  return n / 3 + 1
end

-- The number of the answer with a verdict that has no time of its own.
local function constant_answer(batch, verdict)
  local number = batch.constant_answers[verdict]
  if not number then
    local leased = verdict == ADMITTED or verdict == REPEATED or verdict == LEASED
    number = answer(batch, verdict, 0, leased and batch.lease or 0)
    batch.constant_answers[verdict] = number
  end
  return number
end

-- Redis keeps a sorted set of up to SMALL entries (zset-max-listpack-entries, unless someone configured another number)
-- as a list, in which each search goes from one end to the other. For MANY searches it is better read whole.
local SMALL, MANY = 128, 16

-- Those of a number of names, behind a position of a list, that a set holds, each with its score or, where that was not read,
-- true. They are marked in another table too, if there is one.
local function scores(key, names, before, count, marked)
  local found, marks = {}, marked or {}
  if count >= MANY and redis.call('ZCARD', key) <= SMALL then
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      found[name], marks[name] = true, true
    end
    return found
  end
  for from = before + 1, before + count, PIECE do
    local upto = math.min(from + PIECE - 1, before + count)
    local piece = redis.call('ZMSCORE', key, unpack(names, from, upto))
    for i = from, upto do
      if piece[i - from + 1] then
        found[names[i]], marks[names[i]] = piece[i - from + 1], true
      end
    end
  end
  return found
end

local function score(key, name, found)
  return tonumber(found == true and redis.call('ZSCORE', key, name) or found)
end

local function grant(batch, record, stamp)
  batch.known[record] = true
  batch.granted[#batch.granted + 1] = record
  batch.granted_stamp[record] = stamp
end

-- The answer to a view whose cost has no room, or false: that of the first limit from the root down that is full.
local function denial(batch, view)
  if view.never_fits then
    return answer(batch, NEVER_FITS, view.never_fits.number, 0)
  end
  for _, meter in ipairs(view.path) do
    local limit, wait = read_once(meter).algorithm.wait(meter, view.cost, view.guarantee)
    if limit then
      return answer(batch, DENIED, limit.number, wait)
    end
  end
  return false
end

-- An event as the algorithms know it; in the shadow by the name of its stored message, which its older self may have.
local function event_of(batch, record, stamp, view)
  local name, message = log_name(record, stamp), message_name(record, stamp)
  local other = message
  if view.set.is_shadow then
    name, other = message, message .. '\n' .. batch.time
  end
  return { name = name, other = other, message = message, cost = view.cost, guarantee = view.guarantee }
end

-- The names of the stored messages of a batch.
local function stored_messages(batch)
  local values, messages = batch.values, {}
  for index = 1, batch.count do
    local stamp = batch.before_stamps and values[batch.before_stamps + index] or ''
    messages[index] = message_name(values[batch.before_records + index], stamp)
  end
  return messages
end

-- Takes an event's slots at all meters, or returns the answer that denies it.
local function charge(batch, record, stamp, view)
  -- As long as nothing more was admitted, the same ask has the same answer.
  local set = view.set
  if view.judged_after ~= set.charges then
    view.denied, view.judged_after = denial(batch, view), set.charges
  end
  if view.denied then
    return view.denied
  end
  local event = event_of(batch, record, stamp, view)
  for _, meter in ipairs(view.path) do
    meter.algorithm.take(meter, event)
    meter.changed = true
  end
  set.charges = set.charges + 1
end

-- The answer for an event of which nothing is known.
local function judge(batch, record, stamp, ask)
  if ask.cost == 0 then
    return constant_answer(batch, UNKNOWN)
  end
  local denied = charge(batch, record, stamp, ask)
  if not denied or batch.forward then
    grant(batch, record, stamp)
  end
  if not denied and ask.timed then
    batch.timed[#batch.timed + 1] = batch.time
    batch.timed[#batch.timed + 1] = record
  end
  return denied or constant_answer(batch, ADMITTED)
end

-- What the shadow says of an event that is judged. One that it has admitted takes no second slot.
local function judge_in_shadow(batch, record, stamp, view)
  if view.cost == 0 then
    return 0
  end
  local message = message_name(record, stamp)
  local at = score(batch.shadow_taken_key, message, batch.shadow_taken[message])
  if at and at > batch.now - batch.shadow_kept then
    return constant_answer(batch, ADMITTED)
  end
  local denied = charge(batch, record, stamp, view)
  if not denied then
    batch.shadow_taken[message] = batch.time
    batch.shadow_timed[#batch.shadow_timed + 1] = batch.time
    batch.shadow_timed[#batch.shadow_timed + 1] = message
  end
  return denied or constant_answer(batch, ADMITTED)
end

-- Whether this very call granted a lease with this end when it ran before.
local function granted_before(batch, lease_end)
  if batch.ran_before == nil then
    local at = tonumber(redis.call('ZSCORE', batch.calls_key, batch.nonce))
    batch.ran_before = at and at > batch.now - NONCE_KEPT and at or false
  end
  return batch.ran_before and lease_end == batch.ran_before + batch.lease
end

-- The answer to whoever takes a delivery over.
local function taken_over(batch, in_doubt)
  if not in_doubt then
    return constant_answer(batch, REPEATED)
  end
  batch.in_doubt = batch.in_doubt or answer(batch, REPEATED, 1, batch.lease)
  return batch.in_doubt
end

-- The answer for an event that was admitted before, and is leased or done.
local function recall(batch, record, stamp, ask, lease_end, is_done)
  local now = batch.now
  if stamp ~= '' then
    local known = redis.call('ZSCORE', batch.message_key, record)
    if not known or tonumber(known) ~= tonumber(stamp) then
      return constant_answer(batch, DUPLICATE)
    end
  end
  if is_done then
    return constant_answer(batch, DONE)
  elseif granted_before(batch, lease_end) then
    batch.granted_stamp[record] = stamp
    if mark_of(batch.leased_key, record) == lease_end then
      return answer(batch, REPEATED, 1, lease_end - now)
    end
    return answer(batch, ADMITTED, 0, lease_end - now)
  elseif lease_end > now then
    return answer(batch, LEASED, 0, math.ceil(lease_end - now))
  elseif ask.cost == 0 then
    return constant_answer(batch, UNKNOWN)
  end
  if ask.follows then
    local wait = resume(event_of(batch, record, stamp, ask), ask.path)
    if wait then
      return answer(batch, LEASED, 0, wait)
    end
    ask.set.charges = ask.set.charges + 1
  end
  -- A meter that needs this time cannot tell whose slots it returns: they have to be those of the limits of now.
  local at = ask.timed and redis.call('ZSCORE', batch.taken_key, record)
  if at and tonumber(at) < batch.in_force_since then
    batch.taken_elsewhere[#batch.taken_elsewhere + 1] = record
  end
  grant(batch, record, stamp)
  local in_doubt = ended_in_doubt(batch.leased_key, record, lease_end)
  if in_doubt then
    grant(batch, doubt_of(record), '')
  end
  return taken_over(batch, in_doubt)
end
