//! How a machine's memory and cores are divided among the nodes of a cluster on it: decided purely, before anything
//! starts.

use std::path::PathBuf;

use thiserror::Error;

use super::node::{MemberOrder, NodeOrder};
use crate::bill::Bill;
use crate::cli::table::Table;
use crate::exit::Exit;
use crate::node;
use crate::peers::RECEIVE_SLICE_BYTES_MIN;
use crate::quantity::{ByteSize, MIB};
use crate::settings::{
    CoreList, DRAM_SLICE_BYTES_MIN, INDEX_SLICE_BYTES_MIN, JOURNAL_SLICE_BYTES_MIN, LayoutChoice, Machine,
    NodeArgs, NodeSettings, SLICE_GRAIN_BYTES, SettingsError,
};

/// Share of the available memory that all nodes together plan to use, in percent: the rest is etcd's, the engines'
/// and whoever else's works on the machine.
pub const MEMORY_PERCENT: u64 = 75;
/// Most nodes of one machine: the design point.
pub const NODES_MAX: u16 = 64;

/// What a node gets of index, journal and receive windows where memory is plenty, in bytes: its own defaults.
const AMPLE: MemberOrder = MemberOrder {
    journal: ByteSize(16 * MIB),
    index: ByteSize(256 * MIB),
    receive: ByteSize(64 * MIB),
    shares_memory: true,
};
/// Halvings of these until the least is reached everywhere.
const HALVINGS_MAX: u32 = 8;
/// Part of a node's memory that its arena gets at least, before index, journal and windows get what is ample.
const ARENA_PART: u64 = 2;

/// What is to be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DivisionOrder {
    /// Nodes, at least 1.
    pub nodes: u16,
    /// Shards of each, at least 1.
    pub shards: u16,
    /// Host memory for blocks of each; none for what there is.
    pub dram: Option<ByteSize>,
    /// SSD space for blocks of each; 0 for none.
    pub ssd: ByteSize,
}

/// What each node gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// Orders of the nodes, `node-1` first.
    pub nodes: Vec<NodeOrder>,
    /// The memory bill of each.
    pub bill: Bill,
    /// What all of them may plan to use, in bytes.
    pub budget_bytes: u64,
}

/// The nodes do not fit on the machine.
#[derive(Debug, Error)]
pub enum DivisionRefused {
    /// A setting that no node takes.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The memory.
    #[error(
        "{nodes} nodes need at least {} of memory each, {} together, and {MEMORY_PERCENT} % of the {} available is {}: {remedy}",
        ByteSize(*.each).rounded(), ByteSize(.each.saturating_mul(*.nodes)).rounded(), ByteSize(*.available).rounded(),
        ByteSize(*.budget).rounded()
    )]
    Memory {
        /// Nodes wanted.
        nodes: u64,
        /// The least bill of one, in bytes.
        each: u64,
        /// Memory available, in bytes.
        available: u64,
        /// What all may plan to use, in bytes.
        budget: u64,
        /// What to do.
        remedy: String,
    },
}

impl DivisionRefused {
    /// Exit code of a command that ends with it: the same settings may fit another machine.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            DivisionRefused::Settings(_) => Exit::Usage,
            DivisionRefused::Memory { .. } => Exit::Environment,
        }
    }
}

impl Division {
    /// Divides the machine.
    ///
    /// # Errors
    /// If a node would refuse the settings, or their bills together are more than the share of memory.
    pub fn of(order: &DivisionOrder, machine: &Machine) -> Result<Division, DivisionRefused> {
        let count = u64::from(order.nodes.max(1));
        let available = machine.memory_available_bytes;
        let budget = (u128::from(available) * u128::from(MEMORY_PERCENT) / 100) as u64;
        let each = budget / count;
        let (dram, member, bill) = share(order, machine, each)?;
        if bill.total_bytes() > each {
            return Err(DivisionRefused::Memory {
                nodes: count,
                each: bill.total_bytes(),
                available,
                budget,
                remedy: remedy(order, budget / bill.total_bytes()),
            });
        }
        let nodes = (0..order.nodes).map(|index| NodeOrder {
            name: format!("node-{}", index + 1),
            dram,
            ssd: order.ssd,
            shards: Some(order.shards),
            cores: Some(cores(index, order.shards, &machine.cores)),
            member: Some(member),
            flags: Vec::new(),
        });
        Ok(Division { nodes: nodes.collect(), bill, budget_bytes: budget })
    }

    /// The sum of all bills in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.bill.total_bytes() * self.nodes.len() as u64
    }
}

/// The table printed at start: what holds memory, in one node and in all.
impl std::fmt::Display for Division {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.nodes.len() as u64;
        let all = format!("{count} nodes");
        let mut table = Table::new(["memory", "a node", &all]);
        let mut row = |name: &str, bytes: u64| {
            table.row([name.to_owned(), ByteSize(bytes).rounded(), ByteSize(bytes * count).rounded()]);
        };
        self.bill.items.iter().for_each(|item| row(item.name, item.bytes));
        row("total", self.bill.total_bytes());
        let share = ByteSize(self.budget_bytes).rounded();
        write!(f, "{table}\nof {share}, {MEMORY_PERCENT} % of the memory available")
    }
}

fn remedy(order: &DivisionOrder, fitting: u64) -> String {
    let mut ways = Vec::new();
    if fitting > 0 {
        ways.push(format!("lower --managers to {fitting}"));
    }
    if order.shards > 1 {
        ways.push("lower --shards".to_owned());
    }
    if order.dram.is_some_and(|dram| dram.0 > DRAM_SLICE_BYTES_MIN * u64::from(order.shards)) {
        ways.push("lower --dram".to_owned());
    }
    if order.ssd.0 > 0 {
        ways.push("lower --ssd, whose tables take memory".to_owned());
    }
    ways.push("free memory on the machine".to_owned());
    ways.join(", or ")
}

/// What one node gets of its part of memory, and its bill; the least it can do with if the part is too small.
fn share(
    order: &DivisionOrder,
    machine: &Machine,
    each: u64,
) -> Result<(ByteSize, MemberOrder, Bill), SettingsError> {
    let grain = SLICE_GRAIN_BYTES * u64::from(order.shards);
    let least = ByteSize(DRAM_SLICE_BYTES_MIN * u64::from(order.shards));
    // An arena that is given has to fit; one that is not has to get its part beside what is ample.
    let wanted = order.dram.unwrap_or(ByteSize((each / ARENA_PART / grain * grain).max(least.0)));
    let mut halvings = 0;
    let (member, mut bill) = loop {
        let member = halved(halvings, order.shards);
        let bill = bill(order, machine, wanted, member)?;
        if bill.total_bytes() <= each || halvings == HALVINGS_MAX {
            break (member, bill);
        }
        halvings += 1;
    };
    if order.dram.is_some() {
        return Ok((wanted, member, bill));
    }
    // The largest arena whose tables fit too, to the grain; in steps of it, so that the search ends.
    let (mut fits, mut exceeds) = (least.0 / grain, (each / grain + 1).max(least.0 / grain + 1));
    bill = self::bill(order, machine, least, member)?;
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        let tried = self::bill(order, machine, ByteSize(middle * grain), member)?;
        if tried.total_bytes() <= each {
            (fits, bill) = (middle, tried);
        } else {
            exceeds = middle;
        }
    }
    Ok((ByteSize(fits * grain), member, bill))
}

/// Index, journal and windows after so many halvings, none below what a shard needs.
fn halved(halvings: u32, shards: u16) -> MemberOrder {
    let shards = u64::from(shards);
    let part = |ample: ByteSize, least: u64| ByteSize((ample.0 >> halvings).max(least * shards));
    MemberOrder {
        journal: part(AMPLE.journal, JOURNAL_SLICE_BYTES_MIN),
        index: part(AMPLE.index, INDEX_SLICE_BYTES_MIN),
        receive: part(AMPLE.receive, RECEIVE_SLICE_BYTES_MIN),
        ..AMPLE
    }
}

/// The bill that a node with these settings will print. Names and addresses do not weigh.
fn bill(
    order: &DivisionOrder,
    machine: &Machine,
    dram: ByteSize,
    member: MemberOrder,
) -> Result<Bill, SettingsError> {
    let args = NodeArgs {
        node_id: Some("node".to_owned()),
        engine_socket: Some(PathBuf::from("engine.sock")),
        data_dir: Some(PathBuf::from(".")),
        dram: Some(dram),
        ssd: Some(order.ssd),
        shards: Some(order.shards),
        layout: Some(LayoutChoice::Shared),
        journal: Some(member.journal),
        index_budget: Some(member.index),
        receive_budget: Some(member.receive),
        etcd: Some("http://127.0.0.1:2379".to_owned()),
        cluster: Some("local".to_owned()),
        peer_addr: Some("127.0.0.1:20000".to_owned()),
        ..NodeArgs::default()
    };
    NodeSettings::resolve(&args, machine).map(|settings| node::bill(&settings))
}

/// Cores of a node's shards: those of the machine in turn, the last ones first, because interrupts gather on the
/// first.
fn cores(node: u16, shards: u16, available: &[usize]) -> CoreList {
    let first = usize::from(node) * usize::from(shards);
    let turn = |shard: usize| available[available.len() - 1 - (first + shard) % available.len()];
    CoreList((0..usize::from(shards)).map(turn).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::GIB;

    fn machine(available: u64, cores: usize) -> Machine {
        Machine {
            cores: (0..cores).collect(),
            memory_available_bytes: available,
            hugetlb_free_bytes: 0,
            host_name: "host".to_owned(),
            uid: 1,
            runtime_dir: None,
        }
    }

    fn order(nodes: u16, shards: u16) -> DivisionOrder {
        DivisionOrder { nodes, shards, dram: None, ssd: ByteSize(0) }
    }

    /// The bill of what a node is really told, from its flags as it will read them.
    fn bill_of(node: &NodeOrder, machine: &Machine) -> u64 {
        let member = node.member.expect("a member");
        let args = NodeArgs {
            dram: Some(node.dram),
            ssd: Some(node.ssd),
            data_dir: Some(PathBuf::from("data")),
            shards: node.shards,
            cores: node.cores.clone(),
            journal: Some(member.journal),
            index_budget: Some(member.index),
            receive_budget: Some(member.receive),
            etcd: Some("http://127.0.0.1:1".to_owned()),
            cluster: Some("c".to_owned()),
            peer_addr: Some("127.0.0.1:30000".to_owned()),
            ..NodeArgs::default()
        };
        let settings = NodeSettings::resolve(&args, machine).expect("a node takes what it is given");
        assert_eq!(settings.dram_bytes(), node.dram.0, "nothing is rounded away");
        node::bill(&settings).total_bytes()
    }

    #[test]
    fn all_bills_fit_the_share_and_leave_little_of_it() {
        for (available, cores, nodes, shards) in [
            (22 * GIB, 2, 2, 1),
            (22 * GIB, 2, 5, 2),
            (64 * GIB, 8, 16, 4),
            (512 * GIB, 64, 64, 1),
            (2 * GIB, 1, 3, 1),
        ] {
            let machine = machine(available, cores);
            let division = Division::of(&order(nodes, shards), &machine).expect("it fits");
            let total: u64 = division.nodes.iter().map(|node| bill_of(node, &machine)).sum();
            assert_eq!(total, division.total_bytes());
            let share = available / 4 * 3;
            assert!(total <= share, "{nodes} nodes of {shards} shards take {total} of {share}");
            // One grain of arena for each shard would be too much.
            let grains = u64::from(nodes) * u64::from(shards) * 2 * SLICE_GRAIN_BYTES;
            assert!(total + grains > share, "{nodes} nodes of {shards} shards take only {total} of {share}");
        }
    }

    #[test]
    fn what_is_given_is_kept_and_the_rest_shrinks_to_fit() {
        let given = DivisionOrder { dram: Some(ByteSize(300 * MIB)), ssd: ByteSize(GIB), ..order(2, 1) };
        let ample = Division::of(&given, &machine(64 * GIB, 2)).expect("it fits");
        assert_eq!(ample.nodes[1].member, Some(AMPLE));
        let scarce_machine = machine(2 * GIB, 2);
        let scarce = Division::of(&given, &scarce_machine).expect("it fits");
        for division in [&ample, &scarce] {
            assert!(
                division
                    .nodes
                    .iter()
                    .all(|node| (node.dram, node.ssd) == (ByteSize(300 * MIB), ByteSize(GIB)))
            );
        }
        assert!(scarce.nodes[0].member.expect("a member").index < AMPLE.index);
        assert!(scarce.total_bytes() <= scarce_machine.memory_available_bytes / 4 * 3);
    }

    #[test]
    fn too_many_nodes_are_refused_with_how_many_fit() {
        let machine = machine(4 * GIB, 2);
        let refused = Division::of(&order(64, 1), &machine).expect_err("they do not fit");
        assert_eq!(refused.exit(), Exit::Environment);
        let DivisionRefused::Memory { each, budget, .. } = &refused else { panic!("{refused}") };
        let text = refused.to_string();
        let fitting = budget / each;
        for part in ["64 nodes", "4.00 GiB", "75 %", "3.00 GiB", &format!("lower --managers to {fitting}")] {
            assert!(text.contains(part), "no word of `{part}`: {text}");
        }
        // The remedy is one, and there is no better.
        let fitting = u16::try_from(fitting).expect("a few");
        assert!(Division::of(&order(fitting, 1), &machine).is_ok(), "{text}");
        assert!(Division::of(&order(fitting + 1, 1), &machine).is_err(), "{text}");
        let large = DivisionOrder { dram: Some(ByteSize(8 * GIB)), ..order(1, 2) };
        let text = Division::of(&large, &machine).expect_err("it does not fit").to_string();
        assert!(text.contains("lower --shards, or lower --dram, or free memory"), "{text}");
        assert!(!text.contains("--managers"), "not even one fits: {text}");
    }

    #[test]
    fn what_no_node_takes_is_refused_as_a_setting() {
        for (order, part) in [
            (order(2, 3), "--shards 3"),
            (DivisionOrder { dram: Some(ByteSize(MIB)), ..order(2, 1) }, "--dram 1mib"),
            (DivisionOrder { ssd: ByteSize(MIB), ..order(2, 1) }, "--ssd 1mib"),
        ] {
            let refused = Division::of(&order, &machine(64 * GIB, 2)).expect_err("a node refuses it");
            assert!(refused.exit() == Exit::Usage && refused.to_string().contains(part), "{refused}");
        }
    }

    #[test]
    fn nodes_take_the_cores_in_turn_from_the_last_one() {
        let lists = |nodes, shards, available: &[usize]| -> Vec<String> {
            (0..nodes).map(|node| cores(node, shards, available).to_string()).collect()
        };
        assert_eq!(lists(3, 1, &[0, 1]), ["1", "0", "1"]);
        assert_eq!(lists(3, 2, &[4, 5, 6]), ["6,5", "4,6", "5,4"]);
        assert_eq!(lists(2, 1, &[7]), ["7", "7"]);
    }

    #[test]
    fn the_table_sums_up() {
        let machine = machine(22 * GIB, 2);
        let division = Division::of(&order(2, 1), &machine).expect("it fits");
        let text = division.to_string();
        assert!(text.lines().next().is_some_and(|line| line.contains("2 nodes")), "{text}");
        for part in
            ["arena", "journal", "peer index", "receive windows", "metadata queues", "of 16.50 GiB, 75 %"]
        {
            assert!(text.contains(part), "no word of `{part}`: {text}");
        }
        assert!(text.contains(&ByteSize(division.total_bytes()).rounded()), "{text}");
    }
}
