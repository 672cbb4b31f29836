//! Fabrics by rule: nodes and links as if they had been listed.
//!
//! Names: hosts `h0`..., switches `s0`..., leaves `leaf0`..., spines `spine0`...; a dumbbell's hosts `l0`... and `r0`.... A
//! new generator (a Clos network, rails) is a function here and a word in [`KINDS`].

use toml::Spanned;

use super::{
    plan::Plan,
    schema::{Generate, LinkEntry, Maybe},
};
use crate::source::{Error, Source};

/// A generator's name, its keys, and what it does.
type Kind = (
    &'static str,
    &'static [&'static str],
    fn(&Rule<'_>, &mut Plan) -> Result<(), Error>,
);

const KINDS: [Kind; 4] = [
    ("pair", &["switches"], pair),
    ("dumbbell", &["pairs"], dumbbell),
    ("incast", &["senders"], incast),
    (
        "leaf-spine",
        &["leaves", "hosts_per_leaf", "spines"],
        leaf_spine,
    ),
];

/// Hosts or switches that one generator makes at most.
const MOST: u32 = 1 << 17;

struct Rule<'a> {
    source: Source<'a>,
    generate: &'a Spanned<Generate>,
    trunk: LinkEntry,
}

/// Adds what the rule says.
pub(super) fn generate(
    source: Source<'_>,
    generate: &Spanned<Generate>,
    plan: &mut Plan,
) -> Result<(), Error> {
    let given = generate.get_ref();
    let Some((kind, keys, make)) = KINDS.iter().find(|kind| kind.0 == given.kind.get_ref()) else {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.0).collect();
        let reason = format!(
            "no generator is called {:?}; there are {}",
            given.kind.get_ref(),
            known.join(", ")
        );
        return Err(source.error(given.kind.span(), reason));
    };
    for (name, value) in [
        ("switches", &given.switches),
        ("pairs", &given.pairs),
        ("senders", &given.senders),
        ("leaves", &given.leaves),
        ("hosts_per_leaf", &given.hosts_per_leaf),
        ("spines", &given.spines),
    ] {
        if let Some(value) = value
            && !keys.contains(&name)
        {
            let reason = format!(
                "{name} means nothing for {kind:?}, which takes {}",
                keys.join(", ")
            );
            return Err(source.error(value.span(), reason));
        }
    }
    let trunk = LinkEntry {
        rate: given.trunk_rate.clone(),
        delay: given.trunk_delay.clone(),
        ..LinkEntry::default()
    };
    make(
        &Rule {
            source,
            generate,
            trunk,
        },
        plan,
    )
}

impl Rule<'_> {
    /// A count that must be given, at least 1.
    fn count(&self, name: &str, value: &Maybe<u32>) -> Result<u32, Error> {
        let Some(value) = value else {
            let reason = format!("a {} needs {name}", self.generate.get_ref().kind.get_ref());
            return Err(self.source.error(self.generate.span(), reason));
        };
        self.bounded(name, 1, value)
    }

    fn bounded(&self, name: &str, least: u32, value: &Spanned<u32>) -> Result<u32, Error> {
        let count = *value.get_ref();
        if (least..=MOST).contains(&count) {
            Ok(count)
        } else {
            let reason = format!("{name} is {least} to {MOST}, not {count}");
            Err(self.source.error(value.span(), reason))
        }
    }

    fn host(&self, plan: &mut Plan, name: String) -> Result<String, Error> {
        plan.add_host(self.source, self.generate.span(), name.clone())?;
        Ok(name)
    }

    fn switch(&self, plan: &mut Plan, name: String) -> Result<String, Error> {
        plan.add_switch(self.source, self.generate.span(), name.clone())?;
        Ok(name)
    }

    fn link(&self, plan: &mut Plan, a: &str, b: &str) {
        plan.add_link(self.generate.span(), a, b, LinkEntry::default());
    }

    fn trunk(&self, plan: &mut Plan, a: &str, b: &str) {
        plan.add_link(self.generate.span(), a, b, self.trunk.clone());
    }
}

/// h0 - h1, or h0 - s0 - s1 - ... - h1.
fn pair(rule: &Rule<'_>, plan: &mut Plan) -> Result<(), Error> {
    let switches = match &rule.generate.get_ref().switches {
        Some(given) => rule.bounded("switches", 0, given)?,
        None => 0,
    };
    let first = rule.host(plan, "h0".into())?;
    let last = rule.host(plan, "h1".into())?;
    let mut before = first.clone();
    for n in 0..switches {
        let switch = rule.switch(plan, format!("s{n}"))?;
        if n == 0 {
            rule.link(plan, &before, &switch);
        } else {
            rule.trunk(plan, &before, &switch);
        }
        before = switch;
    }
    rule.link(plan, &before, &last);
    Ok(())
}

/// l0, l1, ... - s0 - s1 - r0, r1, ...
fn dumbbell(rule: &Rule<'_>, plan: &mut Plan) -> Result<(), Error> {
    let pairs = rule.count("pairs", &rule.generate.get_ref().pairs)?;
    let left = rule.switch(plan, "s0".into())?;
    let right = rule.switch(plan, "s1".into())?;
    for (side, switch) in [("l", &left), ("r", &right)] {
        for n in 0..pairs {
            let host = rule.host(plan, format!("{side}{n}"))?;
            rule.link(plan, &host, switch);
        }
    }
    rule.trunk(plan, &left, &right);
    Ok(())
}

/// h0, h1, ... - s0; the last host is the receiver by custom.
fn incast(rule: &Rule<'_>, plan: &mut Plan) -> Result<(), Error> {
    let senders = rule.count("senders", &rule.generate.get_ref().senders)?;
    let switch = rule.switch(plan, "s0".into())?;
    for n in 0..=senders {
        let host = rule.host(plan, format!("h{n}"))?;
        rule.link(plan, &host, &switch);
    }
    Ok(())
}

/// h0, h1, ... - leaf0, ...; each leaf - each spine.
fn leaf_spine(rule: &Rule<'_>, plan: &mut Plan) -> Result<(), Error> {
    let given = rule.generate.get_ref();
    let leaves = rule.count("leaves", &given.leaves)?;
    let hosts = rule.count("hosts_per_leaf", &given.hosts_per_leaf)?;
    let spines = rule.count("spines", &given.spines)?;
    for (product, what) in [
        (u64::from(leaves) * u64::from(hosts), "hosts"),
        (u64::from(leaves) * u64::from(spines), "trunks"),
    ] {
        if product > u64::from(MOST) {
            let reason = format!("{product} {what} are more than {MOST}");
            return Err(rule.source.error(rule.generate.span(), reason));
        }
    }
    for n in 0..spines {
        rule.switch(plan, format!("spine{n}"))?;
    }
    for leaf in 0..leaves {
        let switch = rule.switch(plan, format!("leaf{leaf}"))?;
        for n in 0..hosts {
            let host = rule.host(plan, format!("h{}", leaf * hosts + n))?;
            rule.link(plan, &host, &switch);
        }
        for n in 0..spines {
            rule.trunk(plan, &switch, &format!("spine{n}"));
        }
    }
    Ok(())
}
