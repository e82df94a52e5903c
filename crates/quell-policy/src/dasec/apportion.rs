//! Division of an integer in proportion, exact to the unit.
//!
//! Weights are integers so that a tenant's total is kept exactly; amounts that are given or taken are
//! divided by the method of the largest remainder, so the parts always sum to the whole.

/// Divides `amount` in proportion to `weights`, part `i` at most `caps[i]`. The parts sum to
/// `amount`, or to the sum of the caps where that is less. The amount beyond a part's cap is
/// divided among the others. Equal remainders go to the earlier part. Parts of weight 0 get
/// nothing unless all weights that are left are 0; then the earliest parts are filled first.
///
/// O(n log n).
pub(super) fn apportion(amount: u64, weights: &[u64], caps: &[u64]) -> Vec<u64> {
    debug_assert_eq!(weights.len(), caps.len());
    let mut parts = vec![0; weights.len()];
    let mut left = u128::from(amount);
    let mut weight_left: u128 = weights.iter().map(|&w| u128::from(w)).sum();

    // Parts with the least room for their weight fill up first; once one does not, no later one does.
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| {
        let room = |cap: usize, weight: usize| u128::from(caps[cap]) * u128::from(weights[weight]);
        let weightless = |i: usize| weights[i] == 0; // comparable with no ratio: last
        weightless(a)
            .cmp(&weightless(b))
            .then_with(|| room(a, b).cmp(&room(b, a)))
            .then(a.cmp(&b))
    });
    let mut open = order.as_slice();
    while let Some((&i, rest)) = open.split_first() {
        let (cap, weight) = (u128::from(caps[i]), u128::from(weights[i]));
        if left * weight < cap * weight_left {
            break;
        }
        parts[i] = cap.min(left) as u64;
        left -= u128::from(parts[i]);
        weight_left -= weight;
        open = rest;
    }
    if left == 0 || open.is_empty() {
        return parts;
    }

    // Every open part's exact share is below its cap, so one unit more still fits.
    let mut remainders = Vec::with_capacity(open.len());
    let mut handed_out = 0;
    for &i in open {
        let share = left * u128::from(weights[i]);
        parts[i] = (share / weight_left) as u64;
        handed_out += u128::from(parts[i]);
        remainders.push((share % weight_left, i));
    }
    remainders.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for &(_, i) in remainders.iter().take((left - handed_out) as usize) {
        parts[i] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NO_CAP: u64 = u64::MAX;

    #[test]
    fn largest_remainders_get_the_odd_units() {
        // 10 by 1:1:1 is 3.33 each; the tie goes to the first.
        assert_eq!(apportion(10, &[1, 1, 1], &[NO_CAP; 3]), [4, 3, 3]);
        // 10 by 5:3:3 is 4.55, 2.73, 2.73: the two larger remainders win.
        assert_eq!(apportion(10, &[5, 3, 3], &[NO_CAP; 3]), [4, 3, 3]);
    }

    #[test]
    fn what_a_full_part_cannot_take_the_others_take() {
        // By weight 50:50:100; the first stops at 10, so 190 go 1:2.
        assert_eq!(
            apportion(200, &[1, 1, 2], &[10, NO_CAP, NO_CAP]),
            [10, 63, 127]
        );
        assert_eq!(apportion(100, &[1, 1], &[10, 20]), [10, 20]);
    }

    #[test]
    fn nothing_to_divide_or_nobody_to_take() {
        assert_eq!(apportion(7, &[], &[]), [0; 0]);
        assert_eq!(apportion(0, &[1, 2], &[5, 5]), [0, 0]);
        assert_eq!(apportion(7, &[0, 0], &[5, 5]), [5, 2]);
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_whole_and_respect_caps(
            amount in 0..2_000_000_000u64,
            parts in prop::collection::vec((0..100_000_000u64, 0..200_000_000u64), 0..40),
        ) {
            let (weights, caps): (Vec<u64>, Vec<u64>) = parts.into_iter().unzip();
            let result = apportion(amount, &weights, &caps);
            prop_assert_eq!(result.iter().sum::<u64>(), amount.min(caps.iter().sum()));
            prop_assert!(result.iter().zip(&caps).all(|(part, cap)| part <= cap));
        }

        #[test]
        fn no_part_is_a_unit_off_its_exact_share(
            amount in 0..1_000_000u64,
            weights in prop::collection::vec(1..1000u64, 1..20),
        ) {
            let total: u64 = weights.iter().sum();
            let result = apportion(amount, &weights, &vec![NO_CAP; weights.len()]);
            for (part, weight) in result.iter().zip(&weights) {
                let exact = amount as f64 * *weight as f64 / total as f64;
                prop_assert!((*part as f64 - exact).abs() < 1.0 + 1e-6);
            }
        }
    }
}
