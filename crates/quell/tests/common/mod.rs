//! Parts that the tests in the lab's guest share.

use quell_lab::{KernelChoice, Lab};

/// Whether the lab can boot a kernel with sched_ext; says why the test is skipped where not. Tests never
/// download by themselves: `quell lab setup` does, and `./dev test` calls it.
pub fn lab_is_ready() -> bool {
    let lab = match Lab::open() {
        Ok(lab) => lab,
        Err(e) => {
            quell_testkit::skip!(Lab, "{e}");
            return false;
        }
    };
    let ready = lab.is_ready(&KernelChoice::SCHED_EXT).unwrap();
    if !ready {
        quell_testkit::skip!(
            Lab,
            "the lab is not set up here (`quell lab setup --kernel sched_ext`)"
        );
    }
    ready
}
