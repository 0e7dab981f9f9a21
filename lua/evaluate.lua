-- evaluate.lua: evaluates the events of a batch one by one, for decide.lua. Writes nothing.

-- Adds an answer to the reply, and returns its number.
local function answer(batch, verdict, limit, duration)
  local answers = batch.answers
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = verdict, limit, duration
  return n / 3 + 1
end

-- Returns the number of the answer for a verdict with a constant limit and time.
local function constant_answer(batch, verdict)
  local number = batch.constant_answers[verdict]
  if not number then
    local leased = verdict == ADMITTED or verdict == RECLAIMED or verdict == LEASED
    number = answer(batch, verdict, 0, leased and batch.lease or 0)
    batch.constant_answers[verdict] = number
  end
  return number
end

local function score(key, name, found)
  return tonumber(found == true and redis.call('ZSCORE', key, name) or found)
end

local function grant(batch, event_key, version)
  batch.known[event_key] = true
  batch.granted[#batch.granted + 1] = event_key
  batch.granted_version[event_key] = version
end

-- Returns the answer of the first limit, from the root down, that has no room for the cost or false.
local function denial(batch, view)
  if view.exceeds then
    return answer(batch, EXCEEDS_CAPACITY, view.exceeds.number, 0)
  end
  for _, bucket in ipairs(view.path) do
    local limit, wait = read_once(bucket).algorithm.wait(bucket, view.cost, view.guarantee)
    if limit then
      return answer(batch, DENIED, limit.number, wait)
    end
  end
  return false
end

-- Takes an event's slots at all buckets or returns the number of the denial.
local function charge(batch, event_key, version, view)
  -- An ask gets an equal denial until an event takes slots.
  local set = view.set
  if view.evaluated_after ~= set.charges then
    view.denied, view.evaluated_after = denial(batch, view), set.charges
  end
  if view.denied then
    return view.denied
  end
  local event = event_of(batch, event_key, version, view)
  for _, bucket in ipairs(view.path) do
    bucket.algorithm.take(bucket, event)
    bucket.changed = true
  end
  set.charges = set.charges + 1
end

-- Returns the answer for an event that is not recorded.
local function evaluate(batch, event_key, version, ask)
  if ask.cost == 0 or ask.is_muted then
    return constant_answer(batch, UNKNOWN)
  end
  local denied = charge(batch, event_key, version, ask)
  if not denied or batch.forward then
    grant(batch, event_key, version)
  end
  if not denied and ask.timed then
    batch.timed[#batch.timed + 1] = event_key
    batch.timed[#batch.timed + 1] = ask.timed
  end
  return denied or constant_answer(batch, ADMITTED)
end

-- Returns the shadow's answer. An event that the shadow has admitted before takes no second slot.
local function evaluate_in_shadow(batch, event_key, version, view)
  if view.cost == 0 then
    return 0
  end
  local message = message_name(event_key, version)
  local at = score(batch.shadow_taken_key, message, batch.shadow_taken[message])
  if at and at > batch.now - batch.shadow_kept then
    return constant_answer(batch, ADMITTED)
  end
  local denied = charge(batch, event_key, version, view)
  if not denied then
    batch.shadow_taken[message] = batch.time
    batch.shadow_timed[#batch.shadow_timed + 1] = batch.time
    batch.shadow_timed[#batch.shadow_timed + 1] = message
  end
  return denied or constant_answer(batch, ADMITTED)
end

-- Returns whether an earlier run of this very call granted the lease that has this end.
local function granted_before(batch, lease_end)
  if batch.ran_before == nil then
    local at = tonumber(redis.call('ZSCORE', batch.calls_key, batch.nonce))
    batch.ran_before = at and at > batch.now - NONCE_KEPT and at or false
  end
  return batch.ran_before and lease_end == batch.ran_before + batch.lease
end

-- Returns the answer for an event that the caller reclaims.
local function reclaimed(batch, in_doubt)
  if not in_doubt then
    return constant_answer(batch, RECLAIMED)
  end
  batch.in_doubt = batch.in_doubt or answer(batch, RECLAIMED, 1, batch.lease)
  return batch.in_doubt
end

-- Returns the answer for an event that is done.
local function finished(batch, event_key)
  local number, minute = folded_as(batch.taken_key, event_key)
  return number and answer(batch, FOLDED, number, minute) or constant_answer(batch, DONE)
end

-- Returns the answer for an event that is leased or done.
local function recall(batch, event_key, version, ask, lease_end, is_done)
  local now = batch.now
  if version ~= '' then
    local known = redis.call('ZSCORE', batch.message_key, event_key)
    if not known or tonumber(known) ~= tonumber(version) then
      return constant_answer(batch, DUPLICATE)
    end
  end
  if is_done then
    return finished(batch, event_key)
  elseif granted_before(batch, lease_end) then
    batch.granted_version[event_key] = version
    if mark_of(batch.leased_key, event_key) == lease_end then
      return answer(batch, RECLAIMED, 1, lease_end - now)
    end
    return answer(batch, ADMITTED, 0, lease_end - now)
  elseif is_held(lease_end, now, batch.lease) then
    return answer(batch, LEASED, 0, math.ceil(lease_end - now))
  elseif ask.cost == 0 then
    return constant_answer(batch, UNKNOWN)
  end
  if ask.follows then
    local wait = resume(event_of(batch, event_key, version, ask), ask.path)
    if wait and not batch.forward then
      return answer(batch, LEASED, 0, wait)
    end
    ask.set.charges = ask.set.charges + 1
  end
  grant(batch, event_key, version)
  local in_doubt = ended_in_doubt(batch.leased_key, event_key, lease_end)
  if in_doubt then
    grant(batch, doubt_of(event_key), '')
  end
  return reclaimed(batch, in_doubt)
end
