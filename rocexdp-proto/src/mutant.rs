//! Mutants: ways in which the transport can be built wrong, so that the model test can show that it notices
//! (`cargo xtask model --mutants`).
//!
//! `mutant!` with its name is false in every ordinary build, and costs nothing. Built with `--cfg 'rocexdp_mutant="name"'` that one is
//! on; built with `--cfg rocexdp_mutants`, the one that `choose` names: one build for all.
//!
//! Must not: be on by anything but a compiler flag.

#[cfg(not(rocexdp_mutants))]
macro_rules! mutant {
    ($name:literal) => {
        cfg!(rocexdp_mutant = $name)
    };
}

#[cfg(rocexdp_mutants)]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is_chosen($name)
    };
}

#[cfg(rocexdp_mutants)]
static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// The mutant of this process, once and for all.
#[cfg(rocexdp_mutants)]
pub fn choose(name: &str) {
    let _ = CHOSEN.set(name.to_owned());
}

/// Whether it is this one.
#[cfg(rocexdp_mutants)]
pub(crate) fn is_chosen(name: &str) -> bool {
    CHOSEN.get().is_some_and(|chosen| chosen == name)
}
