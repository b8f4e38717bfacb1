//! The memory bill: what a node will hold, itemised before it holds any of it.
//!
//! It is printed at start and refused if it does not fit, so that a node never finds out by being
//! killed. The figures of the rooms come from the rooms' own functions through [`Rooms`]; each room is
//! billed for the most entries it takes, and refuses more, so the node's RSS must stay within the total
//! whatever engines do: many small blocks, many leases, many connections. Beside it RSS has the pages of other
//! nodes' arenas that this one has read: they are those nodes' memory, and on their bills.

use std::fmt;

use thiserror::Error;

use crate::quantity::{ByteSize, MIB};
use crate::settings::{ArenaPages, Machine, NodeSettings};

/// Code, thread stacks, both runtimes and allocator slack of the process, whatever its settings.
pub const PROCESS_BASE_BYTES: u64 = 64 * MIB;
/// Share of the available memory a node may plan to use, in percent: the rest is the kernel's.
pub const AVAILABLE_PERCENT_MAX: u64 = 95;

/// What the rooms of one shard hold at their fullest, in bytes. The node fills it from the rooms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rooms {
    /// Blocks one shard keeps track of at most, both media; sizes the tables below. A shard with as many
    /// evicts for the next one, however small they are.
    pub blocks: u64,
    /// Journal ring.
    pub journal_bytes: u64,
    /// Drop memory.
    pub drop_memory_bytes: u64,
    /// Resident table and its ordered index.
    pub resident_bytes: u64,
    /// Eviction queues and ghosts.
    pub eviction_bytes: u64,
    /// Slab tables of the arena slice.
    pub slab_bytes: u64,
    /// Segment tables of the SSD slice.
    pub segment_log_bytes: u64,
    /// Submission and completion rings and the requests in flight on the SSD.
    pub ssd_ring_bytes: u64,
    /// Of the connections of one core: frames coming in, answers going out, requests in work, ledgers.
    pub connection_bytes: u64,
    /// Leases, holds, reservations and waiting requests; see [`charged_slots_max`].
    pub ledger_bytes: u64,
    /// Mail rings to and from the other cores.
    pub mailbox_bytes: u64,
    /// Interned namespaces and their registrations.
    pub namespace_bytes: u64,
    /// Index of peers' blocks, in a cluster.
    pub index_bytes: u64,
    /// Receive windows of connections with peers.
    pub receive_bytes: u64,
    /// Inventory frames that peers have not consumed.
    pub metadata_queue_bytes: u64,
    /// Samples of visibility.
    pub visibility_bytes: u64,
    /// Recorded turns.
    pub turns_bytes: u64,
}

/// One line of the bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillItem {
    /// What holds the memory.
    pub name: &'static str,
    /// Bytes in the whole node.
    pub bytes: u64,
    /// Which settings make it that large.
    pub why: String,
    /// What an operator can do about it.
    pub remedy: &'static str,
}

/// Everything the node will hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    /// The lines, arena first. None is empty.
    pub items: Vec<BillItem>,
}

/// The bill does not fit. Exit code 3: the same settings may fit another day or machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the memory bill is {total}, of which {charged} from memory, but {available} is available and a node plans with at most \
     {AVAILABLE_PERCENT_MAX} % of it; the largest item is {largest} with {largest_size}: {remedy}",
    total = .total.rounded(), charged = .charged.rounded(), available = .available.rounded(),
    largest_size = .largest_size.rounded()
)]
pub struct BillTooLarge {
    /// Total of the bill.
    pub total: ByteSize,
    /// Part of it that comes from available memory (not from reserved huge pages).
    pub charged: ByteSize,
    /// Memory available.
    pub available: ByteSize,
    /// Name of the largest item.
    pub largest: &'static str,
    /// Its size.
    pub largest_size: ByteSize,
    /// What to do about it.
    pub remedy: &'static str,
}

const ARENA: &str = "arena";
/// Part of a slice that engines may fill at once, and that one connection may lease: one half.
const CHARGED_PART: u64 = 2;

/// Most slots that engines may be filling in a slice, and most blocks that one connection may have under
/// leases: either is charged with whole slots, and no slot is smaller than an extent.
#[must_use]
pub const fn charged_slots_max(slice_bytes: u64) -> u64 {
    slice_bytes / CHARGED_PART / orbitkv_wire::bounds::EXTENT_ALIGN_BYTES
}

impl Bill {
    /// The bill of a node with these settings and rooms. Items of 0 bytes are left out.
    #[must_use]
    pub fn of(settings: &NodeSettings, rooms: &Rooms) -> Bill {
        let shards = u64::from(settings.shards);
        let slice = |bytes: u64| format!("{} a shard", ByteSize(bytes).rounded());
        let tables = format!("{} blocks a shard", rooms.blocks);
        let charged = format!("{} slots a shard", charged_slots_max(settings.dram_slice_bytes));
        let blocks_remedy = "lower --dram or --ssd: fewer blocks need smaller tables";
        let fewer_shards = "lower --shards";
        let lines: [(&'static str, u64, String, &'static str); 17] = [
            (ARENA, settings.dram_slice_bytes, slice(settings.dram_slice_bytes), "lower --dram"),
            ("journal", rooms.journal_bytes, slice(settings.journal_slice_bytes), "lower --journal"),
            ("drop memory", rooms.drop_memory_bytes, "ended residences".to_owned(), fewer_shards),
            ("residents", rooms.resident_bytes, tables.clone(), blocks_remedy),
            ("eviction", rooms.eviction_bytes, tables.clone(), blocks_remedy),
            ("slab tables", rooms.slab_bytes, slice(settings.dram_slice_bytes), "lower --dram"),
            ("segment log", rooms.segment_log_bytes, slice(settings.ssd_slice_bytes), "lower --ssd"),
            ("ssd ring", rooms.ssd_ring_bytes, "requests in flight".to_owned(), fewer_shards),
            (
                "connections",
                rooms.connection_bytes,
                "frames, answers, requests in work".to_owned(),
                fewer_shards,
            ),
            ("leases and reservations", rooms.ledger_bytes, charged, "lower --dram"),
            ("mailboxes", rooms.mailbox_bytes, format!("{shards} shards with each other"), fewer_shards),
            ("namespaces", rooms.namespace_bytes, "registrations".to_owned(), fewer_shards),
            ("peer index", rooms.index_bytes, slice(rooms.index_bytes), "lower --index-budget"),
            ("receive windows", rooms.receive_bytes, slice(rooms.receive_bytes), "lower --receive-budget"),
            (
                "metadata queues",
                rooms.metadata_queue_bytes,
                "frames that peers have not consumed".to_owned(),
                "run the node without --etcd",
            ),
            (
                "visibility samples",
                rooms.visibility_bytes,
                "for a measurement".to_owned(),
                "lower --visibility-samples",
            ),
            ("recorded turns", rooms.turns_bytes, "for a measurement".to_owned(), "leave out --trace-turns"),
        ];
        let mut items: Vec<BillItem> = lines
            .into_iter()
            .filter(|(_, bytes, _, _)| *bytes > 0)
            .map(|(name, bytes, why, remedy)| BillItem {
                name,
                bytes: bytes.saturating_mul(shards),
                why,
                remedy,
            })
            .collect();
        items.push(BillItem {
            name: "process",
            bytes: PROCESS_BASE_BYTES,
            why: "code, threads, allocator slack".to_owned(),
            remedy: "use a larger machine",
        });
        Bill { items }
    }

    /// Sum of the items in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.items.iter().fold(0, |total, item| total.saturating_add(item.bytes))
    }

    /// Whether the machine can carry the bill. An arena that fits the reserved huge pages is not charged to
    /// available memory, unless the settings say that it will not use them.
    ///
    /// # Errors
    /// The bill, what is available, and the largest item with its remedy.
    pub fn admit(&self, machine: &Machine, pages: ArenaPages) -> Result<(), BillTooLarge> {
        let arena = self.items.iter().find(|item| item.name == ARENA).map_or(0, |item| item.bytes);
        let reserved = match pages {
            ArenaPages::Auto | ArenaPages::Hugetlb if arena <= machine.hugetlb_free_bytes => arena,
            _ => 0,
        };
        let charged = self.total_bytes() - reserved;
        let bound = u128::from(machine.memory_available_bytes) * u128::from(AVAILABLE_PERCENT_MAX) / 100;
        let paid = |item: &&BillItem| reserved == 0 || item.name != ARENA;
        match self.items.iter().filter(paid).max_by_key(|item| item.bytes) {
            Some(largest) if u128::from(charged) > bound => Err(BillTooLarge {
                total: ByteSize(self.total_bytes()),
                charged: ByteSize(charged),
                available: ByteSize(machine.memory_available_bytes),
                largest: largest.name,
                largest_size: ByteSize(largest.bytes),
                remedy: largest.remedy,
            }),
            _ => Ok(()),
        }
    }
}

/// The aligned table printed at start, with its total.
impl fmt::Display for Bill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.items.iter().map(|item| item.name.len()).max().unwrap_or(0).max("total".len());
        for item in &self.items {
            writeln!(f, "{:width$}  {:>12}  {}", item.name, ByteSize(item.bytes).rounded(), item.why)?;
        }
        write!(f, "{:width$}  {:>12}", "total", ByteSize(self.total_bytes()).rounded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::GIB;
    use crate::settings::NodeArgs;

    fn machine(memory_available_bytes: u64, hugetlb_free_bytes: u64) -> Machine {
        Machine {
            cores: vec![0, 1, 2, 3],
            memory_available_bytes,
            hugetlb_free_bytes,
            host_name: "host".to_owned(),
            uid: 1,
            runtime_dir: None,
        }
    }

    fn bill(dram: &str) -> Bill {
        let args =
            NodeArgs { dram: Some(dram.parse().expect("a size")), shards: Some(2), ..NodeArgs::default() };
        let settings = NodeSettings::resolve(&args, &machine(64 * GIB, 0)).expect("settings");
        let rooms =
            Rooms { blocks: 1_000, journal_bytes: 8 * MIB, resident_bytes: 3 * MIB, ..Rooms::default() };
        Bill::of(&settings, &rooms)
    }

    #[test]
    fn items_are_of_the_whole_node_and_sum_up() {
        let bill = bill("1gib");
        let items: Vec<_> = bill.items.iter().map(|item| (item.name, item.bytes / MIB)).collect();
        assert_eq!(items, [("arena", 1_024), ("journal", 16), ("residents", 6), ("process", 64)]);
        assert_eq!(bill.total_bytes(), (1_024 + 16 + 6 + 64) * MIB);
        let table = bill.to_string();
        assert!(table.contains("residents      6.00 MiB  1000 blocks a shard"), "{table}");
        assert!(table.ends_with("total          1.08 GiB"), "{table}");
    }

    #[test]
    fn leases_and_reservations_are_billed_for_the_smallest_slots() {
        // However small the blocks: half of the slice in slots of one extent each.
        assert_eq!(charged_slots_max(64 * MIB) * 4_096 * 2, 64 * MIB);
        let args = NodeArgs { dram: Some("1gib".parse().expect("a size")), ..NodeArgs::default() };
        let settings = NodeSettings::resolve(&args, &machine(64 * GIB, 0)).expect("settings");
        let rooms = Rooms { ledger_bytes: 2 * MIB, ..Rooms::default() };
        let table = Bill::of(&settings, &rooms).to_string();
        assert!(table.contains("leases and reservations      2.00 MiB  131072 slots a shard"), "{table}");
    }

    /// The node's own bill: its rooms are billed by entries, so smaller memory means fewer of them, and
    /// no line but the arena's may depend on how large the blocks are that engines save.
    #[test]
    fn a_nodes_tables_grow_with_its_media_and_shards() {
        let line = |bill: &Bill, name: &str| {
            bill.items.iter().find(|item| item.name == name).map_or(0, |item| item.bytes)
        };
        let of = |dram: &str, shards: u16| {
            let args = NodeArgs {
                dram: Some(dram.parse().expect("a size")),
                shards: Some(shards),
                ..NodeArgs::default()
            };
            crate::node::bill(&NodeSettings::resolve(&args, &machine(64 * GIB, 0)).expect("settings"))
        };
        let (small, large, split) = (of("1gib", 1), of("4gib", 1), of("4gib", 2));
        for name in ["residents", "eviction"] {
            let grown = line(&large, name) as f64 / line(&small, name) as f64;
            assert!((3.0..=5.0).contains(&grown), "{name} grew {grown} times with four times the memory");
        }
        // What connections and ended residences take does not depend on the memory for blocks.
        for name in ["connections", "drop memory"] {
            assert!(line(&small, name) > 0, "{name} is billed");
            assert_eq!(line(&small, name), line(&large, name), "{name}");
            assert!(line(&split, name) >= line(&large, name), "{name}");
        }
    }

    #[test]
    fn sizes_that_no_machine_has_are_billed_and_refused() {
        let size = |text: &str| text.parse::<ByteSize>().ok();
        let ample = NodeArgs {
            dram: size("1gib"),
            data_dir: Some("data".into()),
            etcd: Some("http://127.0.0.1:1".to_owned()),
            cluster: Some("c".to_owned()),
            peer_addr: Some("127.0.0.1:7000".to_owned()),
            ..NodeArgs::default()
        };
        type Set = fn(&mut NodeArgs, Option<ByteSize>);
        let sizes: [Set; 6] = [
            |args, size| args.dram = size,
            |args, size| args.ssd = size,
            |args, size| (args.dram, args.ssd) = (size, size),
            |args, size| args.journal = size,
            |args, size| args.index_budget = size,
            |args, size| args.receive_budget = size,
        ];
        for (shards, set) in [1, 2].into_iter().flat_map(|shards| sizes.map(|set| (shards, set))) {
            let (mut args, machine) =
                (NodeArgs { shards: Some(shards), ..ample.clone() }, machine(64 * GIB, 0));
            set(&mut args, Some(ByteSize(u64::MAX)));
            let settings = NodeSettings::resolve(&args, &machine).expect("no bound of the settings");
            let refused = crate::node::bill(&settings).admit(&machine, ArenaPages::Auto);
            assert!(refused.is_err(), "{args:?}");
        }
    }

    #[test]
    fn the_refusal_names_the_largest_item_and_its_remedy() {
        let bill = bill("1gib");
        let exact = (u128::from(bill.total_bytes()) * 100).div_ceil(95) as u64;
        assert_eq!(bill.admit(&machine(exact, 0), ArenaPages::Auto), Ok(()));
        let text = bill.admit(&machine(exact - 2, 0), ArenaPages::Auto).expect_err("too large").to_string();
        for part in ["1.08 GiB", "95 %", "largest item is arena with 1.00 GiB", "lower --dram"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
    }

    #[test]
    fn reserved_huge_pages_pay_for_the_arena_only_if_used_and_enough() {
        let bill = bill("1gib");
        let low = 200 * MIB;
        assert_eq!(bill.admit(&machine(low, GIB), ArenaPages::Hugetlb), Ok(()));
        assert!(bill.admit(&machine(low, GIB - 1), ArenaPages::Auto).is_err());
        assert!(bill.admit(&machine(low, GIB), ArenaPages::Small).is_err());
        let refused =
            bill.admit(&machine(60 * MIB, GIB), ArenaPages::Auto).expect_err("the rest does not fit");
        assert_eq!(refused.largest, "process");
    }
}
