-- pairs.lua: pairs of firing events and the resolved event that ends them.
--
-- Each first-level category has a book of pairs, so that no category can displace the pairs of another category. A book is a hash,
-- field -> value, and a sorted set, field -> when the field expires. The first byte of a value is its kind. The fields are
--   the name of a pair
--     =  the pair is open: its messages, see messages_text
--   the name of a pair and a line feed
--     ~  firing events that are being delivered or wait for a slot, see put_deliveries
--   the name of a pair and two line feeds
--     ?  firing events wait for the message of their key, and come back before the field expires
--   the name of a pair and three line feeds
--     %  how often the key changed, see lib/flaps.lua
--   a line feed and the event key of a resolved event
--     =  messages of the pair that the event has taken

local OPEN, UNDER_WAY, COMING = '=', '~', '?'

-- How many versions a millisecond has. A version orders the events of a pair, and holds the millisecond in which the event was stored.
local VERSIONS = 1024

-- How many messages of a pair are remembered. If there are more, it has the first and the newest ones.
local MOST_MESSAGES = 20

-- How many firing events of a pair are remembered that are being delivered or wait for a slot: the newest ones, which are delivered last.
local MOST_DELIVERIES = 100

-- For how long an event that waited for a slot may be late.
local LATE_RETURN = 3600 * SECOND

-- How many fields a book may have. Beyond that, the fields that expire first are removed.
local MOST_PAIRS = 50000

-- Returns a book. A call collects its changes in the book and writes them with write_book.
local function pair_book(key, until_key, now, kept)
  return { key = key, until_key = until_key, now = now, kept = kept, entries = {}, changed = {}, deliveries = {}, unwritten = {}, announced = {} }
end

-- Reads the books of a call: their number from ARGV, two keys for each from KEYS. An event gives the number of its book, 0 for none.
local function read_books(next_argument, next_key, now, kept)
  local books = {}
  for b = 1, tonumber(next_argument()) do
    local key = next_key()
    books[b] = pair_book(key, next_key(), now, kept)
  end
  return books
end

-- Returns a field that has not expired, with the changes of this call; nil without one.
local function read_pair(book, field)
  local entry = book.entries[field]
  if entry == nil then
    local value = redis.call('HGET', book.key, field)
    local expires = tonumber(redis.call('ZSCORE', book.until_key, field))
    entry = value and expires and expires > book.now and { value = value, expires = expires }
    book.entries[field] = entry or false
  end
  return entry or nil
end

local function put_pair(book, field, value, expires)
  book.entries[field], book.changed[field] = { value = value, expires = expires }, true
end

local function remove_pair(book, field)
  book.entries[field], book.changed[field] = false, true
end

-- Returns the value of an entry behind its kind; nil if the entry is of another kind.
local function pair_text(entry, kind)
  return entry and string.sub(entry.value, 1, 1) == kind and string.sub(entry.value, 2) or nil
end

-- Returns the text for messages: for each the version of the event, the version of the stored message that it was posted for, the
-- time of the post, the rank of its severity, what is folded into it (the number of events, their newest version, the time of the newest
-- one), when it last began to show their number, and that number, the lengths of the event key and of the receipt, then the event key and the receipt. A reminder
-- has the event key and the version of the event that it reminds of.
local function messages_text(messages)
  local texts = { OPEN }
  for _, m in ipairs(messages) do
    texts[#texts + 1] = integer(m.version) .. ' ' .. integer(m.carrier) .. ' ' .. integer(m.time) .. ' ' .. integer(m.rank) .. ' '
    texts[#texts + 1] = integer(m.folded) .. ' ' .. integer(m.newest) .. ' ' .. integer(m.last) .. ' ' .. integer(m.shown_at) .. ' ' .. integer(m.shown_count) .. ' '
    texts[#texts + 1] = #m.event_key .. ' ' .. #m.receipt .. ' ' .. m.event_key .. m.receipt
  end
  return table.concat(texts)
end

local MESSAGE_NUMBERS = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) '

-- Returns the messages of an open or taken pair; nil for any other pair.
local function read_messages(entry)
  local text, from, messages = pair_text(entry, OPEN) or '', 1, {}
  while true do
    local found = { string.find(text, MESSAGE_NUMBERS, from) }
    if not found[1] then
      return messages[1] and messages
    end
    local upto = found[2]
    for i = 3, #found do
      found[i] = tonumber(found[i])
    end
    local receipt_from = upto + 1 + found[12]
    from = receipt_from + found[13]
    messages[#messages + 1] = {
      version = found[3], carrier = found[4], time = found[5], rank = found[6],
      folded = found[7], newest = found[8], last = found[9], shown_at = found[10], shown_count = found[11],
      event_key = string.sub(text, upto + 1, receipt_from - 1), receipt = string.sub(text, receipt_from, from - 1),
    }
  end
end

-- Adds the record of a firing event, as if it had been delivered now, to the members for `done` and `message`.
local function remember(message, until_then, dones, versions)
  dones[#dones + 1] = integer(until_then)
  dones[#dones + 1] = message.event_key
  if not string.find(message.event_key, '\n', 1, true) then -- else the event key has the version
    versions[#versions + 1] = integer(message.version)
    versions[#versions + 1] = message.event_key
  end
end

-- Returns the field for a resolved event that has taken its pair.
local function taken_pair(event_key)
  return '\n' .. event_key
end

-- Returns the field for the firing events of a pair that are being delivered or wait for a slot.
local function under_way_of(pair)
  return pair .. '\n'
end

-- Returns the firing events of a pair that are being delivered or wait for a slot: event key -> the announced version, and when the event comes
-- back that waits, otherwise 0.
local function read_deliveries(book, pair)
  if book.deliveries[pair] then
    return book.deliveries[pair]
  end
  local text, from, deliveries = pair_text(read_pair(book, under_way_of(pair)), UNDER_WAY) or '', 1, {}
  book.deliveries[pair] = deliveries
  while true do
    local _, upto, version, comes_back, length = string.find(text, '^(%d+) (%d+) (%d+) ', from)
    if not upto then
      return deliveries
    end
    from = upto + 1 + tonumber(length)
    deliveries[string.sub(text, upto + 1, from - 1)] = { version = tonumber(version), comes_back = tonumber(comes_back) }
  end
end

-- Changes the firing events that are being delivered or wait for a slot. For each: version, when it comes back, length of the event key, a blank
-- behind each number, the event key.
local function put_deliveries(book, pair, deliveries)
  local texts = { UNDER_WAY }
  for event_key, one in pairs(deliveries) do
    texts[#texts + 1] = integer(one.version) .. ' ' .. integer(one.comes_back) .. ' ' .. #event_key .. ' ' .. event_key
  end
  if #texts > 1 then
    local before = read_pair(book, under_way_of(pair))
    put_pair(book, under_way_of(pair), table.concat(texts), math.max(book.now + book.kept, before and before.expires or 0))
  else
    remove_pair(book, under_way_of(pair))
  end
end

-- Returns the field for the time until which firing events of a pair come back.
local function coming_of(pair)
  return pair .. '\n\n'
end

-- Returns until when firing events of a pair come back; 0 if none does.
local function coming_until(book, pair)
  local entry = read_pair(book, coming_of(pair))
  return entry and entry.expires or 0
end

-- Returns the version of the event that has the messages of `original`. If the pair has no message of it, it is `version`: of a reminder, the
-- version of the newest folded event, which the reminder is about.
local function version_of(messages, event_key, original, version)
  for _, m in ipairs(messages) do
    if m.event_key == original then
      return m.version
    end
  end
  local newest = messages[#messages]
  return event_key ~= original and newest and newest.newest > 0 and math.min(newest.newest, version) or version
end

-- Reads the version of the stored message, the event key of the event or of the event that it repeats, the receipt, and the rank of the
-- severity, from the argument of a call about the delivery of a firing event: version, rank, length of the event key, event key, receipt,
-- a blank behind each number.
local function read_delivery(text)
  local _, upto, version, rank, length = string.find(text, '^(%d+) (%d+) (%d+) ')
  local receipt_from = upto + 1 + tonumber(length)
  return tonumber(version), string.sub(text, upto + 1, receipt_from - 1), string.sub(text, receipt_from), tonumber(rank)
end

-- Records that a firing event is being delivered. write_book leaves out earlier events without a lease (`is_leased` returns false).
local function announce_pair(book, pair, event_key, delivery, is_leased)
  local carrier, original = read_delivery(delivery)
  local version = version_of(read_messages(read_pair(book, pair)) or {}, event_key, original, carrier)
  local deliveries = read_deliveries(book, pair)
  local waited = original ~= event_key and deliveries[original]
  if waited and waited.version == carrier then -- a reminder waits for its slot under the event key of the event that it repeats
    deliveries[original], book.unwritten[pair] = nil, is_leased
  end
  local known = deliveries[event_key]
  if known and known.version == version and known.comes_back == 0 then
    return
  end
  deliveries[event_key], book.announced[event_key] = { version = version, comes_back = 0 }, true
  book.unwritten[pair] = is_leased
end

local function always()
  return true
end

-- Changes or removes (nil) the record of a firing event that is being delivered or waits for a slot.
local function put_delivery(book, pair, event_key, one)
  local deliveries = read_deliveries(book, pair)
  if one or deliveries[event_key] then
    deliveries[event_key] = one
    book.unwritten[pair] = book.unwritten[pair] or always
  end
end

-- Records a delivery (see read_delivery). A delivered firing event opens its pair or adds a message to it. A delivered resolved
-- event removes the pair that it took. The field is the name of the pair or see taken_pair. The caller must not repeat this for a
-- delivery: the pair may have been resolved since.
local function settle_pair(book, field, event_key, delivery)
  if string.sub(field, 1, 1) == '\n' then
    if read_pair(book, field) then
      remove_pair(book, field)
    end
    return
  end
  local carrier, original, receipt, rank = read_delivery(delivery)
  local messages = read_messages(read_pair(book, field)) or {}
  messages[#messages + 1] = {
    version = version_of(messages, event_key, original, carrier), carrier = carrier, time = book.now, rank = rank,
    folded = 0, newest = 0, last = 0, shown_at = 0, shown_count = 0, event_key = original, receipt = receipt,
  }
  if #messages > MOST_MESSAGES then
    table.remove(messages, 2)
  end
  put_pair(book, field, messages_text(messages), book.now + book.kept)
  put_delivery(book, field, event_key, nil)
end

-- Writes the deliveries of the pairs for which they changed, once for each pair: a flood of one key announces many in one call.
local function write_deliveries(book)
  for pair, is_leased in pairs(book.unwritten) do
    local newest, kept, count = {}, {}, 0
    for event_key, one in pairs(book.deliveries[pair]) do
      newest[#newest + 1] = { event_key = event_key, version = one.version, comes_back = one.comes_back }
    end
    table.sort(newest, function(a, b)
      return a.version > b.version or a.version == b.version and a.event_key > b.event_key
    end)
    for _, one in ipairs(newest) do
      local is_wanted = book.announced[one.event_key] or one.comes_back + LATE_RETURN > book.now or is_leased(one.event_key)
      if count < MOST_DELIVERIES and is_wanted then
        kept[one.event_key], count = one, count + 1
      end
    end
    put_deliveries(book, pair, kept)
  end
end

-- Writes the changes of a book. Removes fields that have expired or exceed MOST_PAIRS. The commands that change nothing come
-- first, so that missing rights show before anything is written.
local function write_book(book)
  write_deliveries(book)
  if not next(book.changed) then
    return
  end
  local values, expiries, removed = {}, {}, {}
  for field in pairs(book.changed) do
    local entry = book.entries[field]
    if entry then
      values[#values + 1], values[#values + 2] = field, entry.value
      expiries[#expiries + 1], expiries[#expiries + 2] = integer(entry.expires), field
    else
      removed[#removed + 1] = field
    end
  end
  redis.call('ZREM', book.until_key, '')
  redis.call('ZADD', book.until_key, 'XX', 0, '')
  redis.call('HDEL', book.key, '')
  in_pieces('HSET', book.key, values)
  in_pieces('ZADD', book.until_key, expiries)
  in_pieces('HDEL', book.key, removed)
  in_pieces('ZREM', book.until_key, removed)

  local expired = redis.call('ZCOUNT', book.until_key, '-inf', integer(book.now))
  local surplus = math.min(math.max(expired, redis.call('ZCARD', book.until_key) - MOST_PAIRS), PIECE)
  if surplus > 0 then
    local forgotten = redis.call('ZRANGE', book.until_key, 0, surplus - 1)
    redis.call('HDEL', book.key, unpack(forgotten))
    redis.call('ZREM', book.until_key, unpack(forgotten))
  end
  local last = redis.call('ZRANGE', book.until_key, -1, -1, 'WITHSCORES')[2]
  if last then
    local kept = milliseconds(tonumber(last) - book.now)
    redis.call('PEXPIRE', book.key, kept)
    redis.call('PEXPIRE', book.until_key, kept)
  end
end

local function write_books(books)
  for _, book in ipairs(books) do
    write_book(book)
  end
end
