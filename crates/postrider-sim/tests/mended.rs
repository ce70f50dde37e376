//! Worlds in which something once went wrong. What was mended then must stay so, as long as these seeds draw the same worlds;
//! what each was is in `docs/proof.md`.

use postrider_sim::{
    config::{Mode, Overrides},
    world::{self, Run},
};

/// The seed, and how many deliveries it makes.
const ONCE_WRONG: [(u64, u64, &str); 24] = [
    (45, 1_000, "a resend went past the cap of an endpoint whose breaker sends what comes to the dead letters"),
    (198, 1_000, "the same"),
    (340, 1_000, "the judge took a breaker for open that an unjudged request had closed"),
    (349, 1_000, "a node that had been out of touch sent before it had heard of a pause"),
    (516, 10_700, "what a node accepted for lanes before it served them was overtaken by what it accepted after"),
    (761, 1_000, "the lane of a deleted endpoint sent, without the limits of the endpoint"),
    (1_339, 1_370, "the judge took a resend past a breaker that buries for the delivery's own try"),
    (1_339, 1_715, "the judge took a resend for the delivery's own try, which was answered and not on record"),
    (1_339, 1_925, "the judge took a resend past a probe that failed for the delivery's own try"),
    (2_229, 10_700, "a lane that was taken over had a full bucket when its settings came"),
    (4_399, 1_300, "what waited at a paused endpoint was given up by settings that had been replaced"),
    (4_597, 10_700, "what was not sent was given back at a lower rate than it had been taken at"),
    (5_051, 440, "the judge took a breaker for open that had been closed before the clock was set back"),
    (5_559, 2_760, "the judge took ten seconds for the longest that an outcome is on its way past a health set back"),
    (5_194, 10_600, "what waited behind one key filled its lane's memory, and nothing else of the lane was read"),
    (5_870, 900, "the judge took one that had passed a replay for one that nothing had been before since it came"),
    (6_351, 7_170, "the judge took a lane for free that had as many requests not on record as it may"),
    (6_621, 6_100, "the same as 1339"),
    (6_621, 10_700, "the same as 5051"),
    (6_661, 10_700, "the judge took a resend for the delivery's own try, which was answered alike at the same moment"),
    (
        7_263,
        10_700,
        "a health that was set back while its lane was coming to rest was written over by what ended there",
    ),
    (20_171, 10_700, "a new message went before a row that had been told of before it"),
    (20_342, 10_700, "what had expired used up the rate of what had not"),
    (20_619, 10_700, "an attempt was counted from before its settings were read"),
];

#[test]
fn what_was_mended_stays_mended() {
    for (seed, deliveries, what) in ONCE_WRONG {
        let mode = if seed.is_multiple_of(2) { Mode::Liveness } else { Mode::Safety };
        let run = Run { seed, deliveries, mode, overrides: Overrides::default(), keep_trace: false };
        let outcome = world::run(run);
        assert!(outcome.violations.is_empty(), "seed {seed}, {what}: {}", outcome.violations[0]);
    }
}
