//! Changes of a QP's state: every pair of states and every service against the kernel's table.

#[path = "common/modify.rs"]
mod modify;

use QpState::{Init as INIT, Rtr as RTR, Sqe as SQE};
use modify::*;
use rocexdp_proto::verbs::QpState;
use rocexdp_proto::{AttrMask, ModifyError, ModifyQp, VerbsError};
use std::collections::BTreeMap;

#[test]
fn every_change_of_state_takes_the_attributes_of_the_kernels_table() {
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    for (service, name) in SERVICES {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let what = format!("{name} {from} -> {to}");
                let Some((required, optional)) = kernel(from, to, name) else {
                    let all = with(from, to, names());
                    for m in [ModifyQp::to(to), all] {
                        assert_eq!(
                            m.check(from, service),
                            Err(ModifyError::Transition { to }),
                            "{what}"
                        );
                    }
                    *kinds.entry("no transition").or_default() += 1;
                    continue;
                };
                let (required, optional) = (words(required), words(optional));
                let least = with(from, to, required.iter().copied());
                assert_eq!(least.check(from, service), Ok(to), "{what}");
                let most = with(from, to, required.iter().chain(&optional).copied());
                assert_eq!(most.check(from, service), Ok(to), "{what}: all optional");
                *kinds.entry("transition").or_default() += 1;
                for attr in names() {
                    let required_too = required.contains(&attr);
                    if required_too {
                        let without = required.iter().copied().filter(|a| *a != attr);
                        assert_eq!(
                            with(from, to, without).check(from, service),
                            Err(ModifyError::Missing(one(attr))),
                            "{what} without {attr}"
                        );
                        *kinds.entry("required").or_default() += 1;
                    } else {
                        let more = with(from, to, required.iter().copied().chain([attr]));
                        let expected = if optional.contains(&attr) {
                            *kinds.entry("optional").or_default() += 1;
                            Ok(to)
                        } else {
                            *kinds.entry("forbidden").or_default() += 1;
                            Err(ModifyError::Forbidden(one(attr)))
                        };
                        assert_eq!(more.check(from, service), expected, "{what} with {attr}");
                    }
                }
                if from == to {
                    let stays = ModifyQp {
                        state: None,
                        ..most
                    };
                    assert_eq!(
                        stays.check(from, service),
                        Ok(from),
                        "{what}: no state named"
                    );
                }
            }
        }
    }
    // 22 of the 49 pairs are changes, for each service.
    assert_eq!(kinds["transition"], 3 * 22);
    assert_eq!(kinds["no transition"], 3 * 27);
    assert!(kinds["required"] > 20 && kinds["optional"] > 60 && kinds["forbidden"] > 500);
}

#[test]
fn masks_have_the_numbers_of_ib_qp_attr_mask() {
    let numbers: Vec<u32> = AttrMask::ALL.iter().map(|(m, _)| m.bits()).collect();
    let expected: Vec<u32> = (0..=20).filter(|n| *n != 19).map(|n| 1 << n).collect();
    assert_eq!(numbers, expected);
    let mask = with(INIT, RTR, ["PORT", "QKEY"]).mask();
    assert_eq!(mask.to_string(), "STATE|PORT|QKEY");
}

#[test]
fn an_endpoints_qp_goes_where_the_table_lets_it_and_nowhere_else() {
    for (service, name) in SERVICES {
        for from in QpState::ALL {
            if from == SQE {
                continue;
            }
            for to in QpState::ALL {
                let mut bench = Bench::at(service, from);
                if kernel(from, to, name).is_some() {
                    bench.go(to);
                    continue;
                }
                let refused = VerbsError::InvalidTransition { qpn: QPN, from, to };
                assert_eq!(bench.modify(ModifyQp::to(to)), Err(refused), "{name}");
                assert_eq!(bench.state(), from, "{name}: nothing has changed");
            }
        }
    }
}
