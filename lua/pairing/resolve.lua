-- resolve.lua: gives the pairs to the resolved events that end them, and leases these events. They take no slots.
--
-- A resolved event waits while a firing event of its pair is being delivered. From an open pair it takes the messages of the events
-- that were stored before it or, if there are none, of the first one that was stored up to two seconds later. The pair stays open for the
-- remaining messages. The records of these firing events are renewed, so a late repetition is a duplicate.
--
-- A resolved event of a flapping key is folded into the newest message instead, and the pair stays open. The report that such a key is steady
-- asks here too. If the key is resolved, the report takes the pair as a resolved event does. Otherwise it gets copies of all messages, because
-- each of them may show that the key is flapping. The newest is the first of them.
--
-- A pair belongs to the first event that asks for it, until the event's delivery is recorded: whoever gets the event's message again
-- finds the pair. A record that leaves the event its pair prolongs that until the pair expires. The script is idempotent by event,
-- like decide.lua, and a call that is repeated because its reply was lost returns the first answer. A batch is processed in its order.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   leased   sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3   done     sorted set: event key of a delivered event -> when its record expires
--   4   message  sorted set: event key -> version of the stored message
--   5   taken    hash: event key of a folded event -> its number and its message's minute (see lib/folded.lua)
--   6…  books of pairs, see read_books
--
-- ARGV
--   nonce, lease, retention, retention of pairs (microseconds), number of changes and window (milliseconds) of the rule for flapping,
--   books (see read_books)
--   for each event: event key, version, number of its book, pair, version of the stored message also if the event key has it, 1 if it
--   counts for the rule for flapping, 2 if it is the report that the key is steady, otherwise 0
--   a report has the version of the change since which the key is steady in place of the version of its message
--
-- Returns the time, then for each event
--   verdict  see lib/verdicts.lua
--   time     microseconds until the lease ends (ADMITTED, RECLAIMED) or asking again is worthwhile (LEASED); FOLDED: the event's number
--            in its message, see fold_into; otherwise 0
--   receipts ADMITTED, RECLAIMED, DONE if the event keeps its pair: of the messages that the event resolves, each with how many events are folded
--            into it, the time of the newest one, the rank of the severity, and 1 if the message stays open; none if they have expired
--   doubt    RECLAIMED: 1 if the event is in doubt; FOLDED: minutes until its message was posted, since 1970; LEASED: of a report
--            that comes too early the version of the newest change; UNPAIRED: 1 if the pair is open, for events that were stored later;
--            otherwise 0
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is granted.

--@include lib/verdicts lib/batch lib/records lib/doubt lib/pairs lib/folded lib/folds lib/flaps

-- When to ask again about a firing event that has no lease now.
local LAPSED_WAIT = SECOND

-- How many versions later than its resolved event a firing event may have been stored: 2 seconds, as pairPatience of a worker.
local STORED_LATER = 2000 * VERSIONS

local calls_key, leased_key, done_key, message_key, taken_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local next_argument = reader(ARGV, 0)
local nonce, lease, retention, kept = next_argument(), tonumber(next_argument()), tonumber(next_argument()), tonumber(next_argument())

local flaps = new_flaps(tonumber(next_argument()), tonumber(next_argument()), kept)

local now, ran_ahead = deployment_time(calls_key)
local books = read_books(next_argument, reader(KEYS, 5), now, 0)
local folds = new_folds(now, kept)
local events, event_keys, fields = {}, {}, {} -- in the order of the batch; fields by book
for event_key in next_argument do
  local version, book, pair, stored = next_argument(), books[tonumber(next_argument())], next_argument(), tonumber(next_argument())
  local kind = next_argument()
  events[#events + 1] = {
    key = event_key, version = version, book = book, pair = pair, stored = stored, counts = kind == '1', is_report = kind == '2',
  }
  event_keys[#event_keys + 1] = event_key
  local names = fields[book] or {}
  fields[book], names[#names + 1], names[#names + 2] = names, pair, under_way_of(pair)
  names[#names + 1], names[#names + 2], names[#names + 3] = coming_of(pair), taken_pair(event_key), flap_of(pair)
end

-- Most of a flood resolves nothing. A few commands show which events are not recorded and which fields are absent.
local recorded = {}
scores(leased_key, event_keys, 0, #event_keys, recorded)
scores(done_key, event_keys, 0, #event_keys, recorded)
redis.call('ZSCORE', message_key, '') -- raises WRONGTYPE and NOPERM early, as the next HGET does
for book, names in pairs(fields) do
  redis.call('HGET', book.key, '')
  local present = scores(book.until_key, names, 0, #names)
  for _, name in ipairs(names) do
    if not present[name] then
      book.entries[name] = false
    end
  end
end

local granted_at = tonumber(redis.call('ZSCORE', calls_key, nonce)) -- when this very call ran before
if granted_at and granted_at <= now - NONCE_KEPT then
  granted_at = nil
end

local leases, versions, taken_anew = {}, {}, {}
local all_taken = {} -- messages that this call takes
local granted_version = {} -- event key -> version, of the events that this call leases

local function grant(event_key, version, is_forgotten)
  granted_version[event_key] = version
  leases[#leases + 1] = integer(now + lease)
  leases[#leases + 1] = event_key
  if version ~= '' then
    versions[#versions + 1] = version
    versions[#versions + 1] = event_key
  end
  if is_forgotten then
    taken_anew[#taken_anew + 1] = event_key
  end
end

local lease_ends = {} -- event key -> end of the lease in Redis

-- Returns the end of the latest lease of an event that is not done; nil if its record has expired.
local function lease_of(event_key)
  if granted_version[event_key] then
    return now + lease
  end
  local lease_end = lease_ends[event_key] or tonumber(redis.call('ZSCORE', leased_key, event_key))
  lease_ends[event_key] = lease_end
  return lease_end and lease_end > now - retention and lease_end or nil
end

-- Returns whether an event was folded, and its record has not expired.
local function is_folded(event_key)
  return folded_as(taken_key, event_key) and tonumber(redis.call('ZSCORE', done_key, event_key) or 0) > now
end

-- Returns when to ask again for a pair because of a firing event that is being delivered or waits for a slot; nil without one. It counts only
-- events that were stored before the resolved event, unless the pair is not open. A report counts each event that is being delivered: its message
-- may say that the key is flapping.
local function wait_for_delivery(book, pair, is_open, stored, is_report)
  local wait = coming_until(book, pair) > now and LAPSED_WAIT or nil
  for event_key, one in pairs(read_deliveries(book, pair)) do
    local counts = not is_open or one.version <= stored
    local its_end = (counts or is_report) and lease_of(event_key)
    if its_end then
      wait = math.max(wait or 0, is_held(its_end, now, lease) and math.ceil(its_end - now) or LAPSED_WAIT)
    elseif counts and one.comes_back + LATE_RETURN > now then
      wait = math.max(wait or 0, one.comes_back - now, LAPSED_WAIT)
    end
  end
  return wait
end

-- Returns whether an event was folded into a message that was stored after a resolved event: the key fires again, or soon. A worse event may
-- have got a newer message meanwhile, although it was stored before.
local function fires_later(messages, stored)
  for _, m in ipairs(messages) do
    if m.newest > stored then
      return true
    end
  end
  return false
end

-- Returns the event keys of the firing events that a resolved event ends; nil if all of them were stored too much later.
local function ended_by(messages, stored)
  local is_ended, later = {}, nil
  for _, m in ipairs(messages) do
    is_ended[m.event_key] = m.version <= stored or nil
    later = later or m.version <= stored + STORED_LATER and m.event_key
  end
  if next(is_ended) then
    return is_ended
  end
  return later and { [later] = true }
end

-- Takes the messages that a resolved event resolves from an open pair, for the event.
local function take_pair(book, pair, entry, event_key, is_ended)
  local taken, left = {}, {}
  for _, m in ipairs(read_messages(entry)) do
    local list = is_ended[m.event_key] and taken or left
    list[#list + 1] = m
    if list == taken then
      all_taken[#all_taken + 1] = m
    end
  end
  if left[1] then
    put_pair(book, pair, messages_text(left), entry.expires)
  else
    remove_pair(book, pair)
  end
  put_pair(book, taken_pair(event_key), messages_text(taken), entry.expires)
end

-- Returns the answer for the report that a key is steady, as evaluate does: DONE if there is nothing to report. A copy of a message that stays
-- open has the version 0.
local function report(event, entry, messages, done_until)
  local book, pair, flap = event.book, event.pair, read_flap(event.book, event.pair)
  if not flap or not flap.flapping then
    return DONE, 0
  end
  local newest_change = flap.changes[#flap.changes]
  if messages and newest_change ~= event.stored then
    return LEASED, LAPSED_WAIT, newest_change
  end
  flap.flapping = false
  put_flap(flaps, book, pair, flap)
  if not messages then
    return DONE, 0
  elseif flap.fires then
    local copies = { table.remove(messages) }
    for _, m in ipairs(messages) do
      copies[#copies + 1] = m
    end
    for _, copy in ipairs(copies) do
      copy.version = 0
    end
    put_pair(book, taken_pair(event.key), messages_text(copies), entry.expires)
  else
    take_pair(book, pair, entry, event.key, ended_by(read_messages(entry), math.huge))
  end
  grant(event.key, event.version, done_until)
  return ADMITTED, lease
end

-- Returns the verdict, the time, and whether the event is in doubt. FOLDED: the event's number and its message's minute. LEASED: see report.
local function evaluate(event)
  local event_key, version, book, pair, stored = event.key, event.version, event.book, event.pair, event.stored
  local lease_end, done_until, known_version
  if recorded[event_key] then
    lease_end, done_until = lease_of(event_key), tonumber(redis.call('ZSCORE', done_key, event_key))
    known_version = redis.call('ZSCORE', message_key, event_key)
  end
  local taken, entry = read_pair(book, taken_pair(event_key)), read_pair(book, pair)
  local is_done = done_until and done_until > now
  local folded = folds.answered[event_key]
  if folded then
    return folded.version == version and FOLDED or DUPLICATE, folded.number, folded.minute
  elseif granted_version[event_key] then
    return granted_version[event_key] == version and LEASED or DUPLICATE, granted_version[event_key] == version and lease or 0
  elseif (is_done or lease_end) and version ~= '' and tonumber(known_version) ~= tonumber(version) then
    return DUPLICATE, 0
  elseif is_done then
    local number, minute = folded_as(taken_key, event_key)
    return number and FOLDED or DONE, number or 0, minute
  elseif lease_end and granted_at and lease_end == granted_at + lease then
    granted_version[event_key] = version
    if mark_of(leased_key, event_key) == lease_end then
      return RECLAIMED, lease_end - now, true
    end
    return ADMITTED, lease_end - now
  elseif lease_end and is_held(lease_end, now, lease) then
    return LEASED, math.ceil(lease_end - now)
  elseif lease_end or taken then
    grant(event_key, version, done_until)
    if lease_end and ended_in_doubt(leased_key, event_key, lease_end) then
      leases[#leases + 1] = integer(now + lease)
      leases[#leases + 1] = doubt_of(event_key)
      return RECLAIMED, lease, true
    end
    return RECLAIMED, lease
  end
  local is_open = pair_text(entry, OPEN)
  local wait = wait_for_delivery(book, pair, is_open, stored, event.is_report)
  if wait then
    return LEASED, wait
  end
  local messages = is_open and read_messages(entry)
  if event.is_report then
    return report(event, entry, messages, done_until)
  end
  local newest = messages and messages[#messages]
  local is_flapping = event.counts and count_change(flaps, book, pair, false, stored, is_open)
  if newest and (fires_later(messages, stored) or is_flapping and newest.receipt ~= '') then
    local number, minute = fold_into(folds, book, pair, messages, newest, event_key, version, stored, is_flapping)
    folds.answered[event_key] = { version = version, number = number, minute = minute }
    return FOLDED, number, minute
  end
  local is_ended = messages and ended_by(messages, stored)
  if is_ended then
    take_pair(book, pair, entry, event_key, is_ended)
    grant(event_key, version, done_until)
    return ADMITTED, lease
  end
  return UNPAIRED, 0, is_open and true
end

local reply = { now }
for _, event in ipairs(events) do
  local verdict, time, in_doubt = evaluate(event)
  local is_granted = verdict == ADMITTED or verdict == RECLAIMED
  reply[#reply + 1] = verdict
  reply[#reply + 1] = time
  local receipts = {}
  for _, m in ipairs((is_granted or verdict == DONE) and read_messages(read_pair(event.book, taken_pair(event.key))) or {}) do
    receipts[#receipts + 1] = m.receipt
    receipts[#receipts + 1] = integer(m.folded) .. ' ' .. integer(m.last) .. ' ' .. integer(m.rank) .. ' ' .. (m.version == 0 and 1 or 0)
  end
  reply[#reply + 1] = receipts
  reply[#reply + 1] = tonumber(in_doubt) or in_doubt and 1 or 0
end
write_folds(folds, { calls = calls_key, leased = leased_key, done = done_key, message = message_key, taken = taken_key }, lease, retention)
if #leases == 0 then
  write_books(books)
  return reply
end

-- An event that came again after its record had expired may have been folded: then its record stays.
local ended, ended_keys = {}, {} -- members for done: the firing events of these messages; their event keys
for _, m in ipairs(all_taken) do
  if not lease_of(m.event_key) and not is_folded(m.event_key) then
    remember(m, now + retention, ended, versions)
    ended_keys[#ended_keys + 1] = m.event_key
  end
end

check_rights(leased_key, lease + retention)
redis.call('ZREM', done_key, '')
if ran_ahead then
  trim_ahead(calls_key, now)
end
redis.call('ZADD', leased_key, 'XX', 0, '')
write_books(books)
in_pieces('ZREM', done_key, taken_anew)
in_pieces('ZREM', leased_key, ended_keys) -- expired leases: removing them later would remove the new records
in_pieces('HDEL', taken_key, ended_keys)
-- Unlike note_call, this does not shorten how long decide.lua keeps the calls.
local is_first_call = redis.call('ZCARD', calls_key) == 0
redis.call('ZADD', calls_key, integer(now), nonce)
if is_first_call then
  redis.call('PEXPIRE', calls_key, milliseconds(retention))
end
add_and_keep(leased_key, leases, lease + retention)
if #ended > 0 then
  add_and_keep(done_key, ended, retention)
end
add_and_keep(message_key, versions, lease + retention)
return reply
