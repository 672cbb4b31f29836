//! The reference's `topology.txt` and `flow.txt`.
//!
//! Topology: numbers of nodes, switches and links; the switches' node numbers; then per link two nodes, rate, delay and share
//! of packets lost. Flows: their number; then per flow source, destination, priority, destination port, bytes, start in seconds.

use std::collections::{BTreeMap, BTreeSet};

use rocexdp_proto::time::Rate;
use rocexdp_sim::picos::Picos;

use super::text::{FileError, Words};

/// A node's number in the reference's files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// A line of a topology.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// What it joins.
    pub ends: [NodeId; 2],
    /// Rate of each direction.
    pub rate: Rate,
    /// Time from end to end.
    pub delay: Picos,
    /// Share of packets lost, 0 for the configuration's.
    pub error_rate: f64,
    /// Its line in the file.
    pub line: u32,
}

/// A `topology.txt`.
#[derive(Clone, Debug, PartialEq)]
pub struct Nodes {
    /// The file's own name, for messages.
    pub file: String,
    /// Number of nodes.
    pub count: u32,
    /// Which of them are switches.
    pub switches: BTreeSet<NodeId>,
    /// The links in their order.
    pub links: Vec<Link>,
}

impl Nodes {
    /// Reads the text of `file`.
    ///
    /// # Errors
    /// The first word that is out of place: a node that is none, a link to itself, or one that was there already; a host
    /// without a link or with several; a switch without one; parts that no link joins.
    pub fn read(file: &str, text: &str) -> Result<Self, FileError> {
        let mut words = Words::new(file, text);
        let count = words.whole("the number of nodes", 1..=100_000)?;
        let switches = words.whole("the number of switches", 1..=count)?;
        let links = words.whole("the number of links", 0..=1_000_000)?;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut nodes = Self {
            file: file.to_owned(),
            count,
            switches: BTreeSet::new(),
            links: Vec::new(),
        };
        for _ in 0..switches {
            let id = nodes.node(&mut words, "a switch")?;
            if !nodes.switches.insert(id) {
                return Err(words.error_here(format!("switch {} is listed twice", id.0)));
            }
        }
        let mut pairs: BTreeMap<[NodeId; 2], u32> = BTreeMap::new();
        for _ in 0..links {
            let ends = [
                nodes.node(&mut words, "a link's first node")?,
                nodes.node(&mut words, "a link's second node")?,
            ];
            let [a, b] = ends;
            let here = words.error_here("");
            let line = here.line.unwrap_or(0);
            if a == b {
                return Err(words.error_here(format!("a link joins node {} to itself", a.0)));
            }
            if let Some(first) = pairs.insert([a.min(b), a.max(b)], line) {
                return Err(words.error_here(format!(
                    "nodes {} and {} are joined already, on line {first}: one link a pair",
                    a.0, b.0
                )));
            }
            nodes.links.push(Link {
                ends,
                rate: words.rate("a link's rate")?,
                delay: words.time("a link's delay")?,
                error_rate: words.number("a link's share of lost packets", 0.0..=1.0)?,
                line,
            });
        }
        if let Some(word) = words.next() {
            return Err(words.error_here(format!(
                "{:?} stands after the last of {links} links: correct their number on line 1",
                word.text
            )));
        }
        nodes.check(&words)?;
        Ok(nodes)
    }

    fn node(&self, words: &mut Words<'_>, what: &str) -> Result<NodeId, FileError> {
        let id = words.whole(what, 0..=u64::from(self.count.saturating_sub(1)))?;
        Ok(NodeId(u32::try_from(id).unwrap_or(u32::MAX)))
    }

    fn check(&self, words: &Words<'_>) -> Result<(), FileError> {
        let mut degree: BTreeMap<NodeId, u32> = BTreeMap::new();
        for link in &self.links {
            for end in link.ends {
                let links = degree.entry(end).or_default();
                *links += 1;
                if !self.is_switch(end) && *links > 1 {
                    return Err(words.error(
                        link.line,
                        format!(
                            "host {} has a second link here: hosts of this format have one",
                            end.0
                        ),
                    ));
                }
            }
        }
        let unlinked = (0..self.count).find(|id| !degree.contains_key(&NodeId(*id)));
        if let Some(id) = unlinked {
            return Err(self.error(format!("node {id} has no link")));
        }
        let reached = self.reached();
        match (0..self.count).find(|id| !reached.contains(&NodeId(*id))) {
            Some(id) => Err(self.error(format!(
                "not connected: no links lead from node 0 to node {id}"
            ))),
            None => Ok(()),
        }
    }

    fn reached(&self) -> BTreeSet<NodeId> {
        let mut neighbours: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for Link { ends: [a, b], .. } in &self.links {
            neighbours.entry(*a).or_default().push(*b);
            neighbours.entry(*b).or_default().push(*a);
        }
        let mut reached = BTreeSet::from([NodeId(0)]);
        let mut open = vec![NodeId(0)];
        while let Some(node) = open.pop() {
            for next in neighbours.get(&node).into_iter().flatten() {
                if reached.insert(*next) {
                    open.push(*next);
                }
            }
        }
        reached
    }

    /// Whether a node is a switch.
    #[must_use]
    pub fn is_switch(&self, id: NodeId) -> bool {
        self.switches.contains(&id)
    }

    /// An error of the file as a whole.
    pub(super) fn error(&self, reason: impl Into<String>) -> FileError {
        FileError {
            file: self.file.clone(),
            line: None,
            reason: reason.into(),
        }
    }
}

/// A line of a flow list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Who sends.
    pub source: NodeId,
    /// Who receives.
    pub destination: NodeId,
    /// Priority, 1 to 7.
    pub priority: u8,
    /// UDP source port: 10000 for the first flow of a pair, then one more for each.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
    /// Bytes to send.
    pub size: u64,
    /// Start, nanoseconds.
    pub start: u64,
}

/// First source port of each pair of hosts.
const FIRST_PORT: u16 = 10_000;

impl Flow {
    /// Reads the flow list `file`, for a network.
    ///
    /// # Errors
    /// The first word that is out of place: a node that is no host, a host sending to itself, priority 0, a size of 0 or
    /// beyond the reference's 32 bits, a flow that starts before the one above it.
    pub fn read_all(file: &str, text: &str, nodes: &Nodes) -> Result<Vec<Self>, FileError> {
        let mut words = Words::new(file, text);
        let count = words.whole("the number of flows", 0..=10_000_000)?;
        let mut ports: BTreeMap<(NodeId, NodeId), u16> = BTreeMap::new();
        let mut flows: Vec<Self> = Vec::new();
        for _ in 0..count {
            let source = host(&mut words, nodes, "a flow's source")?;
            let destination = host(&mut words, nodes, "a flow's destination")?;
            if source == destination {
                return Err(words.error_here(format!("host {} sends to itself", source.0)));
            }
            let priority = words.whole("a flow's priority", 1..=7)?;
            let port = words.whole("a flow's destination port", 0..=65_535)?;
            let size = words.whole("a flow's size", 1..=u64::from(u32::MAX))?;
            let start = words.seconds("a flow's start")?;
            if flows.last().is_some_and(|f| f.start > start) {
                return Err(words.error_here(
                    "a flow starts before the one above it: the reference would wait for ever; sort them by start",
                ));
            }
            let source_port = ports.entry((source, destination)).or_insert(FIRST_PORT);
            flows.push(Self {
                source,
                destination,
                priority: u8::try_from(priority).unwrap_or(7),
                source_port: *source_port,
                destination_port: u16::try_from(port).unwrap_or(u16::MAX),
                size,
                start,
            });
            *source_port = source_port.wrapping_add(1);
        }
        if let Some(word) = words.next() {
            return Err(words.error_here(format!(
                "{:?} stands after the last of {count} flows: correct their number on line 1",
                word.text
            )));
        }
        Ok(flows)
    }
}

fn host(words: &mut Words<'_>, nodes: &Nodes, what: &str) -> Result<NodeId, FileError> {
    let id = nodes.node(words, what)?;
    if nodes.is_switch(id) {
        return Err(words.error_here(format!("{what} is node {}, a switch", id.0)));
    }
    Ok(id)
}
