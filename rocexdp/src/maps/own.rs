//! Which program on an interface is meant, where this process attached one itself. Others may come and go beside it: another
//! process's, which counts from another moment on, must not take its place in the middle of a run. Attaches nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Result, anyhow, bail};

use super::{Attachment, ProgramRole};

/// Programs that this process attached, by the interface's name as it was asked for. Clones share one table: who attaches writes,
/// who reads maps asks.
#[derive(Clone, Debug, Default)]
pub struct OwnPrograms(Arc<Mutex<BTreeMap<String, Option<u32>>>>);

impl OwnPrograms {
    /// This process watches `iface`: by this program, or, with `None`, by none at present, since the interface has gone.
    pub fn set(&self, iface: &str, program_id: Option<u32>) {
        // Each entry is whole at any time.
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.insert(iface.to_owned(), program_id);
    }

    /// The program whose maps are to be read on `iface`, which is in the calling thread's network namespace: this process's own,
    /// if it attached one there. Else an endpoint's; else the one of id `before`, which was read last, as long as it is there;
    /// else the first that is found.
    ///
    /// # Errors
    /// There is no such interface, no program of rocexdp's on it, or no longer this process's own.
    pub fn attachment(&self, iface: &str, before: Option<u32>) -> Result<Attachment> {
        let own = {
            let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            table.get(iface).copied()
        };
        if own == Some(None) {
            bail!("{iface}: not watched at present: it has gone, or could not be watched again");
        }
        let there = Attachment::all(iface)?;
        match own.flatten() {
            Some(id) => there
                .into_iter()
                .find(|a| a.program_id == id)
                .ok_or_else(|| {
                    anyhow!("{iface}: the program that was attached here ({id}) is no longer there")
                }),
            None => chosen(&there, before)
                .ok_or_else(|| anyhow!("no program of rocexdp is attached to {iface}")),
        }
    }
}

/// Of other processes' programs, an endpoint's first.
fn chosen(there: &[Attachment], before: Option<u32>) -> Option<Attachment> {
    let first = there.first()?;
    if first.role == ProgramRole::Endpoint {
        return Some(*first);
    }
    let same = there.iter().find(|a| Some(a.program_id) == before);
    Some(*same.unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::AttachedAt;

    fn attached(program_id: u32, role: ProgramRole) -> Attachment {
        Attachment {
            program_id,
            role,
            at: AttachedAt::TcxIngress,
        }
    }

    #[test]
    fn the_program_read_before_is_read_on_until_an_endpoint_comes() {
        let chosen = |there: &[Attachment], before| chosen(there, before).map(|a| a.program_id);
        let (seven, eight) = (
            attached(7, ProgramRole::Monitor),
            attached(8, ProgramRole::Monitor),
        );
        assert_eq!(chosen(&[], Some(7)), None);
        assert_eq!(chosen(&[eight, seven], None), Some(8));
        assert_eq!(chosen(&[eight, seven], Some(7)), Some(7));
        assert_eq!(chosen(&[eight], Some(7)), Some(8), "it has gone");
        let endpoint = attached(9, ProgramRole::Endpoint);
        assert_eq!(chosen(&[endpoint, seven], Some(7)), Some(9));
    }

    #[test]
    fn an_own_program_that_has_gone_is_not_replaced_by_another() {
        let own = OwnPrograms::default();
        own.clone().set("lo", None);
        let error = own.attachment("lo", None).unwrap_err().to_string();
        assert!(error.contains("not watched at present"), "{error}");
    }
}
