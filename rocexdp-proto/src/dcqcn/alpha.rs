//! Alpha, the reaction point's estimate of how congested the path is (0: not at all, 1: every packet marked), in its two
//! arithmetics: a real number (paper, ns-3) and 10-bit fixed point (ConnectX).
//!
//! Must not: know when it is updated; the reaction point's clock does.

use super::params::{AlphaForm, RpParams};

/// One in the 10-bit fixed point of ConnectX; alpha itself stops at 1023.
const ONE: u32 = 1 << 10;

/// Alpha and the weights it is updated with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Alpha {
    /// NVIDIA: `alpha = dce_tcp_g * alpha / 1024 + (cnp ? 1024 - dce_tcp_g : 0)`, at most 1023. Revisions of the vendor's
    /// text disagree on which term `dce_tcp_g` weighs; only as the weight of the OLD alpha does the default, 1019, give a
    /// gain near the paper's (5/1024, against 1/256).
    Fixed { value: u32, weight: u32 },
    /// Paper and ns-3: `alpha = (1 - g) * alpha + (cnp ? g : 0)`.
    Real { value: f64, gain: f64 },
}

impl Alpha {
    /// Alpha as it is at the first CNP: `initial_alpha_value`, of which 1023 stands for 1 where alpha is real.
    pub(super) fn initial(p: &RpParams) -> Self {
        match p.alpha_form {
            AlphaForm::Fixed10 => Self::Fixed {
                value: u32::from(p.initial_alpha_value).min(ONE - 1),
                weight: u32::from(p.dce_tcp_g).min(ONE),
            },
            AlphaForm::Real => Self::Real {
                value: (f64::from(p.initial_alpha_value) / f64::from(ONE - 1)).min(1.0),
                gain: p.gain().clamp(0.0, 1.0),
            },
        }
    }

    /// Alpha after one more period, in which a CNP was seen or was not.
    pub(super) fn updated(self, cnp: bool) -> Self {
        match self {
            Self::Fixed { value, weight } => {
                let seen = if cnp { ONE.saturating_sub(weight) } else { 0 };
                Self::Fixed {
                    value: (value.saturating_mul(weight) / ONE)
                        .saturating_add(seen)
                        .min(ONE - 1),
                    weight,
                }
            }
            Self::Real { value, gain } => Self::Real {
                value: (1.0 - gain) * value + if cnp { gain } else { 0.0 },
                gain,
            },
        }
    }

    /// `rate` after a cut, before floors: `rate * (1 - alpha / 2^(gd - 10))`, truncated to whole b/s. `rate` is below 2^50.
    pub(super) fn cut(self, rate: u64, gd: u8) -> u64 {
        match self {
            Self::Fixed { value, .. } => {
                let part = rate
                    .saturating_mul(u64::from(value))
                    .checked_shr(u32::from(gd))
                    .unwrap_or(0);
                rate.saturating_sub(part)
            }
            Self::Real { value, .. } => {
                let divisor = f64::from(
                    1u32.checked_shl(u32::from(gd).saturating_sub(10))
                        .unwrap_or(u32::MAX),
                );
                (rate as f64 * (1.0 - value / divisor)) as u64
            }
        }
    }

    /// As a fraction of 1.
    pub(super) fn fraction(self) -> f64 {
        match self {
            Self::Fixed { value, .. } => f64::from(value) / f64::from(ONE),
            Self::Real { value, .. } => value,
        }
    }
}
