//! Flows from CSV: `from,to,bytes,start[,class]`, a line each; `start` with its unit. Lines that are empty or begin with `#`, and
//! a first line of those names, are passed over.

use rocexdp_sim::topology::PortId;

use super::Flow;
use crate::{
    fabric::Fabric,
    scenario::Class,
    source::Error,
    units::{Bytes, Time},
};

pub(super) fn read(
    name: &str,
    text: &str,
    fabric: &Fabric,
    classes: &[Class],
) -> Result<Vec<Flow>, Error> {
    let mut flows = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        let heading = n == 0 && line.starts_with("from,");
        if line.is_empty() || line.starts_with('#') || heading {
            continue;
        }
        let flow = one(line, fabric, classes).map_err(|reason| Error {
            file: name.to_owned(),
            line: Some(n + 1),
            reason,
        })?;
        flows.push(flow);
    }
    Ok(flows)
}

fn one(line: &str, fabric: &Fabric, classes: &[Class]) -> Result<Flow, String> {
    let fields: Vec<_> = line.split(',').map(str::trim).collect();
    let (from, to, bytes, start, class) = match fields[..] {
        [from, to, bytes, start] => (from, to, bytes, start, None),
        [from, to, bytes, start, class] => (from, to, bytes, start, Some(class)),
        _ => {
            return Err(format!(
                "{} fields: a flow is from,to,bytes,start[,class]",
                fields.len()
            ));
        }
    };
    let host = |name: &str| {
        fabric
            .host(name)
            .ok_or_else(|| format!("no host is called {name:?}"))
    };
    let class = match class {
        None => 0,
        Some(name) => classes
            .iter()
            .position(|class| class.name == name)
            .ok_or_else(|| format!("no class is called {name:?}"))?,
    };
    let flow = Flow {
        from: host(from)?,
        nic: PortId(0),
        to: host(to)?,
        to_nic: PortId(0),
        bytes: Some(Bytes::parse(bytes)?.0),
        start: Time::parse(start)?.0,
        class,
    };
    if flow.from == flow.to {
        return Err(format!("{from} would send to itself"));
    }
    if flow.bytes == Some(0) {
        return Err("a flow has 1 byte or more".to_owned());
    }
    Ok(flow)
}
