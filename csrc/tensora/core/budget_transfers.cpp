// Contents of a step's tensors on their way to the backing store and back.
#include <algorithm>

#include "tensora/base/bits.h"
#include "tensora/core/budget.h"

namespace accelera::tensora {

const char* StepBudget::contents_of(Storage& storage) {
    return storage.device().is_cpu() ? storage.data_ : storage.device_data();
}

void StepBudget::spill(Storage& storage) {
    storage.house()->slot = store_->write(contents_of(storage), storage.nbytes());
    filed_.push_back(&storage);
    drop(storage);
}

void StepBudget::begin_spill(Storage& storage) {
    House& house = *storage.house();
    if (house.slot >= 0 || !storage.is_here()) return;
    house.slot = store_->begin_write(contents_of(storage), storage.nbytes());
    house.passage = Passage::leaving;
    moving_.push_back(&storage);
}

void StepBudget::end_spill(Storage& storage) {
    House& house = *storage.house();
    if (house.passage != Passage::leaving) {
        if (storage.is_here()) spill(storage);  // somebody had it stay
        return;
    }
    const int64_t slot = end_passage(storage);
    house.slot = -1;
    store_->finish(slot);
    house.slot = slot;
    filed_.push_back(&storage);
    drop(storage);
}

void StepBudget::restore(Storage& storage) {
    House& house = *storage.house();
    if (storage.is_here()) return;
    if (house.passage == Passage::coming) return end_restore(storage);
    if (house.packed) return unpack(storage);
    if (house.slot < 0) {
        if (!held_by(storage))
            fail(Kind::store,
                 "[budget] the contents of a tensor could not be computed again after an error of ",
                 "the spill file; load them from a checkpoint");
        recompute(storage.in_step.place);
        return;
    }
    enter(storage, true);
    try {
        store_->read(house.slot, storage.data_, storage.nbytes());
    } catch (...) {
        drop(storage);  // the store still has its contents
        throw;
    }
    house.slot = -1;
    record_return(storage, true);
    std::erase(filed_, &storage);
}

void StepBudget::begin_restore(Storage& storage) {
    House& house = *storage.house();
    if (house.slot < 0 || storage.data_) return depart("contents that would come back are not stored");
    enter(storage, false);
    record_return(storage, true);
    store_->begin_read(house.slot, storage.data_, storage.nbytes());
    house.passage = Passage::coming;
    moving_.push_back(&storage);
    if (!follows_) end_restore(storage);  // its place was taken, and nothing else is on its way
}

void StepBudget::end_restore(Storage& storage) {
    House& house = *storage.house();
    if (house.passage != Passage::coming) return;  // somebody asked for it before
    const int64_t slot = end_passage(storage);
    try {
        store_->finish(slot);
    } catch (...) {
        drop(storage);  // the store still has it
        throw;
    }
    house.slot = -1;
    storage.move(storage.data_);
    std::erase(filed_, &storage);
}

int64_t StepBudget::end_passage(Storage& storage) {
    storage.house()->passage = Passage::none;
    std::erase(moving_, &storage);
    return storage.house()->slot;
}

/// What comes back is there, what leaves stays: nothing goes on in the background. Whether anything did.
bool StepBudget::settle_transfers() {
    if (moving_.empty()) return false;
    for (Storage* storage : std::vector<Storage*>(moving_)) {
        if (storage->house()->passage == Passage::leaving) {
            store_->abandon(end_passage(*storage));
            storage->house()->slot = -1;
            continue;
        }
        try {
            end_restore(*storage);
        } catch (const Error&) {
            // The store has it, and whoever needs it is told.
        }
    }
    return true;
}

/// A storage ends: nobody works on its contents any more, and its slot is free.
void StepBudget::let_go(Storage& storage) noexcept {
    House& house = *storage.house();
    try {
        if (house.index >= 0) arena_.memory->order(storage.stream());
        if (house.passage != Passage::none) {
            store_->abandon(end_passage(storage));
        } else if (house.slot >= 0) {
            store_->forget(house.slot);
        }
    } catch (const Error&) {
        // The process ends, and its devices are gone before.
    }
    if (house.slot >= 0) std::erase(filed_, &storage);
}

/// A storage whose contents come back has a block from here on.
void StepBudget::enter(Storage& storage, bool complete) {
    House& house = *storage.house();
    arena_.memory->order(nullptr);
    const ScopedPin pinned(storage);
    int64_t place = take_planned(storage.block_bytes());
    if (place < 0) place = place_anywhere(storage.block_bytes());
    house.place = place;
    house.last_use = int64_t(log_->operations.size());
    house.index = int32_t(residents_.size());
    residents_.push_back(&storage);
    storage.move(arena_.at(place), complete);
    report_.peak_bytes = std::max(report_.peak_bytes, used_bytes());
}

/// A mask's bits take its place. Memory that is read as a mask may have been written as something else.
void StepBudget::pack(Storage& storage) {
    packing_ = true;
    const RoleScope role(storage.role());
    Ref<Storage> bits;
    try {
        bits = Storage::allocate(bytes_of_bits(storage.nbytes()));
    } catch (...) {
        packing_ = false;
        throw;
    }
    packing_ = false;
    if (!pack_bits(storage.data_, storage.nbytes(), bits->data()))
        return depart("a mask has elements that are neither true nor false");
    storage.house()->packed = std::move(bits);
    drop(storage);
}

void StepBudget::unpack(Storage& storage) {
    Ref<Storage>& bits = storage.house()->packed;
    {
        const ScopedPin pinned(*bits);
        bits->data();  // they may be in the store, which may fail
        enter(storage, true);
        record_return(storage, false);
        unpack_bits(bits->data(), storage.nbytes(), storage.data_);
    }
    bits.reset();
}

void StepBudget::reach(Storage& storage) {
    const Ref<StepBudget> kept(this);  // the storage may be the last to know of it
    const Lock lock(*this);
    if (storage.house()->contents != Contents::computed) refuse_contents(storage);
    if (storage.is_here()) return;
    if (storage.house()->passage == Passage::coming) return end_restore(storage);
    if (here() == this || storage.house()->slot < 0) {
        depart("contents that are elsewhere are read");
        restore(storage);
        return;
    }
    // Outside of a step there may be no room in the arena.
    // An error of the store leaves it as it was.
    storage.leave_arena([&](char* data) { store_->read(storage.house()->slot, data, storage.nbytes()); });
    std::erase(filed_, &storage);
    if (Held* const held = held_by(storage)) *held = {nullptr, Ref<Storage>(&storage)};
}

/// What outlives the step comes back from the store, as far as there is room: plans expect it in the arena.
void StepBudget::fetch_filed() {
    for (Storage* storage : std::vector<Storage*>(filed_)) {
        const int64_t nbytes = storage->block_bytes();
        if (used_bytes() + nbytes <= room_ && arena_.ranges.largest_gap() >= nbytes) restore(*storage);
    }
}

}  // namespace accelera::tensora
