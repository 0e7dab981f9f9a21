-- fold.lua: folds the events of a batch into messages of their keys, for decide.lua.
--
-- An event is folded if the newest message of its key was posted recently enough, is not resolved, and has at least the severity of the
-- event. Otherwise it waits while a message of its key is being delivered, so that many events at once get one message.
--
-- ARGV, in one string, each value followed by a blank
--   retention of pairs (microseconds), books (see read_books)
--   for each event: number of its book, 0 if it is not to be folded; how old its message may be, when it comes back if it has to wait
--   (both microseconds)
-- and for each event: its pair, its delivery without a receipt (see read_delivery)

-- Returns the answer for an event that has no record: FOLDED, LEASED if the event has to wait; nil if the limits decide.
local function decide_fold(fold, index, event_key, version)
  local event = fold.events[index]
  if not event then
    return nil
  end
  local book, pair, batch = event.book, event.pair, fold.batch
  local stored, _, _, rank = read_delivery(event.delivery)
  local messages = read_messages(read_pair(book, pair))
  local newest = messages and messages[#messages]
  if newest and newest.receipt ~= '' and newest.rank >= rank and newest.time > batch.now - event.within then
    local number, minute = fold_into(fold, book, pair, messages, newest, event_key, version, stored)
    local folded = { version = version, answer = answer(batch, FOLDED, number, minute) }
    fold.answered[event_key], batch.known[event_key] = folded, true
    return folded.answer
  end
  for other in pairs(read_deliveries(book, pair)) do
    if other ~= event_key and fold.is_leased(other) then
      put_pair(book, coming_of(pair), COMING, math.max(batch.now + event.comes_back, coming_until(book, pair)))
      return answer(batch, LEASED, 1, event.comes_back)
    end
  end
end

-- Records that an event of the batch is being delivered.
local function announce_fold(fold, index, event_key)
  local event = fold.events[index]
  if event then
    announce_pair(event.book, event.pair, event_key, event.delivery, fold.is_leased)
  end
end

local function write_fold(fold)
  local batch, keys = fold.batch, fold.batch.keys
  local records = { calls = keys[1], leased = keys[2], done = keys[3], message = keys[4], taken = keys[7] }
  write_folds(fold, records, batch.lease, batch.retention)
  write_books(fold.books)
end

local function read_fold(batch, next_word, next_key, before_pairs)
  local fold = new_folds(batch.now, tonumber(next_word()))
  fold.batch, fold.decide, fold.announce, fold.write = batch, decide_fold, announce_fold, write_fold
  fold.books, fold.events = read_books(next_word, next_key, batch.now, fold.kept), {}
  for index = 1, batch.count do
    local book, within, comes_back = fold.books[tonumber(next_word())], tonumber(next_word()), tonumber(next_word())
    fold.events[index] = book and {
      book = book, within = within, comes_back = comes_back,
      pair = batch.values[before_pairs + 2 * index - 1], delivery = batch.values[before_pairs + 2 * index],
    }
  end
  fold.is_leased = function(event_key)
    return batch.granted_version[event_key]
      or tonumber(redis.call('ZSCORE', batch.leased_key, event_key) or 0) > batch.now - batch.retention
  end
  return fold
end
