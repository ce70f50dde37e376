//! What every store must hold to, whatever it is made of.
//!
//! Each behaviour is a function over a [`Harness`], which is all that a new store has to bring: how to open one,
//! how to stop it, and how to let it die. [`conformance!`](crate::conformance) turns all of them into tests.
//! Beside the single behaviours, `sequences` runs random work against a store and a model of plain maps.

pub mod accept;
pub mod callers;
pub mod cancel;
pub mod dead;
pub mod deliveries;
pub mod fixtures;
pub mod health;
pub mod history;
pub mod journal;
pub mod model;
pub mod order;
pub mod pollers;
pub mod refused;
pub mod reopening;
pub mod sequences;
pub mod settings;
pub mod tallies;
pub mod tasks;
pub mod tidy;

use crate::Store;
use async_trait::async_trait;
use postrider_engine::Timestamp;

/// A store that can be stopped and started.
#[async_trait]
pub trait Harness: Sized + Send {
    /// How many random sequences are run, unless `PROPTEST_CASES` says otherwise.
    const SEQUENCES: u32 = 400;

    /// An empty store.
    async fn fresh(grain: Grain) -> Self;

    fn store(&self) -> &dyn Store;

    /// Closes the store in good order and opens it again.
    async fn reopen(self, now: Timestamp) -> Self;

    /// Opens again what would be left if the process had died just now.
    async fn crash(self, now: Timestamp) -> Self;
}

/// How history is partitioned, for stores that do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// As in use: all that a test writes lies together.
    Usual,
    /// A few messages each, so that a test crosses many borders.
    Fine,
}

/// Makes a `#[tokio::test]` of every behaviour, for one [`Harness`]. The crate that calls it needs tokio itself.
#[macro_export]
macro_rules! conformance {
    ($harness:ty) => {
        $crate::conformance! { @rooms $harness;
            accept {
                what_was_accepted_comes_back_the_same
                a_message_is_owed_to_exactly_the_endpoints_it_was_accepted_for
                every_commit_is_announced_in_order
                messages_accepted_in_order_keep_it_and_are_answered_each_by_itself
                a_repeated_request_gets_the_first_answer
                a_chosen_key_with_another_body_is_refused_and_changes_nothing
                a_derived_key_with_another_body_gets_the_first_answer
                one_request_sent_many_times_at_once_makes_one_message
                idempotency_outlives_restarts_and_pieces
                an_event_id_is_taken_once_per_application
                an_event_id_stays_taken_across_restarts_and_pieces
            }
            callers {
                an_api_key_comes_back_as_it_was_put
                api_keys_are_paged_both_ways
                a_revoked_api_key_stays_revoked
                a_rotated_api_key_ends_after_the_overlap
                a_last_use_never_goes_back
                a_revoked_token_is_known_by_its_id
                what_was_issued_up_to_a_moment_is_revoked
                revocations_are_forgotten_once_nothing_needs_them
                the_audit_log_is_filtered_and_paged
                what_is_known_of_callers_outlives_a_restart_and_a_crash
            }
            deliveries {
                a_first_try_that_arrives_leaves_nothing_waiting
                a_retry_is_loaded_when_due_and_not_before
                what_is_due_is_loaded_in_order_and_up_to_the_limit
                a_heavy_lane_is_loaded_in_parts
                a_load_tells_how_far_a_delivery_has_come
                lanes_are_found_with_their_earliest_due_time
                a_dead_letter_says_why
                settling_a_stored_delivery_ends_its_wait
                a_postponed_delivery_waits_and_is_charged_nothing
                what_is_spilled_can_be_loaded
                several_settlements_are_one_commit
                an_endpoint_that_is_gone_is_disabled
                a_failed_resend_leaves_the_schedule_as_it_was
                a_resend_that_arrives_ends_the_schedule
                a_resend_that_arrives_tells_the_lane_what_it_ended
                a_resend_that_arrives_takes_the_dead_letter_away
                a_resend_is_announced_and_asked_twice_waits_once
                what_arrived_stays_delivered_whatever_fails_later
                every_delivery_is_counted_exactly_once
            }
            reopening {
                a_node_sees_itself_among_the_others
                a_crash_after_accept_loses_no_delivery
                a_clean_stop_loses_no_delivery
                after_a_crash_only_the_unsettled_come_back
                what_a_resend_delivered_does_not_come_back_after_a_crash
                deliveries_come_back_from_every_piece
                retries_keep_their_time_across_a_crash
                a_second_crash_finds_the_same_deliveries
                many_callers_at_once_lose_nothing
                keys_grow_even_when_the_clock_goes_back
                keys_of_attempts_grow_across_a_crash_with_the_clock_set_back
                notes_are_kept_and_replaced
                a_closed_store_says_so
            }
            settings {
                an_application_comes_back_as_it_was_put
                an_endpoint_comes_back_as_it_was_put
                an_event_type_comes_back_as_it_was_put
                whoever_puts_second_is_told_so
                a_uid_is_taken_once
                what_exists_is_not_put_as_new
                a_uid_is_free_again_after_its_owner_is_deleted
                uids_of_endpoints_are_apart_between_applications
                an_endpoint_belongs_to_its_application
                a_repeated_put_gets_the_first_answer
                a_refused_put_is_not_remembered
                an_answer_alone_is_remembered
                a_change_of_settings_is_announced
                why_an_endpoint_is_disabled_is_kept
                lists_of_settings_are_paged_both_ways
                applications_of_sources_are_listed_apart
                archived_event_types_are_hidden_unless_asked_for
                settings_outlive_a_restart_and_a_crash
                what_waits_for_a_deleted_endpoint_becomes_dead_letters
                burying_spares_what_was_delivered_or_already_dead
                burying_spares_what_arrived_and_was_replayed
                what_arrives_while_it_is_buried_counts_as_delivered
                deleting_an_application_deletes_its_endpoints
            }
            pollers {
                messages_are_read_on_in_their_order
                a_sieve_lets_types_and_channels_through
                long_payloads_come_a_few_at_a_time
                nothing_is_added_behind_a_horizon
                a_consumers_place_is_kept_and_goes_forward_unless_he_seeks
                a_poller_has_so_many_consumers
            }
            refused {
                what_was_refused_comes_back_and_is_paged
                of_each_source_the_newest_are_kept
                what_was_refused_is_forgotten_after_its_time_and_with_its_source
            }
            health {
                how_an_endpoint_fares_is_kept_with_the_outcome
                an_endpoint_that_recovers_is_not_kept
                a_person_sets_the_health_back
                enabling_an_endpoint_sets_its_health_back
                a_deleted_endpoint_has_no_health
            }
            journal {
                where_nobody_listens_nothing_is_entered
                every_change_of_an_endpoint_is_entered_once
                what_is_sealed_again_is_no_change
                an_endpoint_that_is_disabled_by_its_outcomes_is_entered
                a_delivery_that_fails_recovers_or_ends_is_entered_once
                what_was_tried_and_ends_while_it_waits_is_entered_and_what_was_not_is_not
                a_resend_or_a_replay_that_arrives_is_entered
                a_late_outcome_of_what_was_cancelled_is_not_entered
                tasks_are_entered_when_they_end
                what_concerns_the_operational_endpoints_is_not_entered
                the_same_alert_is_entered_once
                an_alarm_is_entered_when_it_turns_and_kept_while_it_is_raised
                entries_stay_until_they_are_struck_out
            }
            order {
                each_key_is_a_run_from_its_first_message
                a_fifo_lane_is_one_run
                without_an_order_keys_are_not_looked_at
                a_limit_cuts_runs_before_it_keeps_others_out
                many_rows_behind_one_do_not_hide_others
                a_heavy_run_is_loaded_in_parts_and_in_order
                whatever_ends_the_first_the_next_one_follows
                an_earlier_message_goes_before_those_that_wait
                order_outlives_a_restart_and_a_crash
                a_held_key_holds_only_its_own_lane
                burying_leaves_no_row_of_a_key
                what_is_to_be_delivered_later_waits_for_its_time
                what_is_ordered_is_counted_without_gaps
                a_disabled_endpoint_keeps_its_order
            }
            history {
                messages_are_paged_both_ways
                messages_are_paged_both_ways_over_many_pieces
                messages_are_filtered
                attempts_come_back_as_they_were_settled
                attempts_are_paged_both_ways
                attempts_are_filtered
                messages_of_an_endpoint_are_listed_with_their_states
                a_search_finds_by_state_and_endpoint
                a_search_says_how_far_it_looked
                a_search_goes_over_all_applications_but_the_operational_one
                a_message_belongs_to_its_application
                statistics_look_at_the_time_of_acceptance
                an_expunged_payload_is_gone_for_good
                an_expunged_response_is_gone_for_good
                an_empty_page_is_empty
            }
            dead {
                a_dead_letter_tells_all_that_is_known
                a_message_can_be_dead_at_two_endpoints
                dead_letters_are_filtered
                dead_letters_are_paged_both_ways
                a_rare_letter_is_found_behind_many
                a_replay_begins_a_new_cycle
                a_letter_replayed_twice_at_once_begins_one_cycle
                a_repeated_replay_gets_the_first_answer
                what_cannot_be_sent_is_not_replayed
                what_arrived_after_all_is_no_dead_letter
            }
            cancel {
                cancelling_a_message_ends_what_is_not_finished
                cancelling_spares_what_was_not_meant
                a_cancelled_delivery_is_brought_back_by_its_arrival_only
                what_arrives_late_ends_the_cycle_that_was_begun_since
                a_cancelled_delivery_can_be_replayed
                cancelling_the_first_of_a_key_lets_the_next_one_go
                a_backlog_is_what_would_be_delivered
                what_has_waited_too_long_expires
                a_long_lane_expires_in_parts
                one_that_is_over_is_found_behind_many_that_are_not
            }
            tallies {
                counts_add_up_by_span_subject_and_event
                what_was_found_takes_the_place_of_what_was_there
                counts_add_up_by_application
                counts_outlive_a_crash
                counts_are_forgotten_span_by_span
            }
            tasks {
                a_recovery_takes_dead_letters_of_its_endpoint_and_time_only
                a_recovery_goes_on_after_a_restart
                a_replay_waits_while_many_are_due
                a_replay_that_cannot_begin_has_not_moved
                a_recovered_delivery_starts_a_new_cycle
                a_second_recovery_finds_nothing_to_do
                a_recovery_asked_for_twice_is_one
                an_unknown_task_is_none
                a_task_that_is_called_off_stops_where_it_is
                tasks_are_listed_filtered_and_paged
                a_replay_of_dead_letters_takes_what_matches
                a_great_replay_of_dead_letters_takes_each_once
                what_cannot_be_sent_is_not_replayed
                a_bulk_replay_takes_what_matches_and_does_not_wait
                a_bulk_replay_begins_the_cycle_after_the_last_one
                a_replay_of_what_was_missed_takes_what_is_not_owed
                a_cancel_ends_what_waits_and_what_is_on_its_way
                a_cancel_reminds_the_lane_of_what_was_replayed_meanwhile
                a_cancel_spares_what_comes_after_it_was_asked_for
                a_called_off_cancel_wakes_the_lane
                resuming_keeps_what_was_chosen
                resuming_forgets_how_the_endpoint_fared
                a_purge_removes_all_contents_of_the_application
                the_headers_that_a_message_came_with_go_with_its_payload
                a_task_whose_endpoint_is_deleted_ends
            }
            tidy {
                a_payload_expires_at_its_time
                history_is_forgotten_when_it_is_old_enough
                what_still_waits_is_kept_however_old
                forgetting_goes_on_after_a_crash
                an_idle_store_forgets_too
                what_is_forgotten_frees_its_names
                what_is_on_its_way_is_not_forgotten
                answers_are_forgotten_after_their_time
                payloads_go_before_the_rest_if_asked
                a_payload_that_is_needed_outlives_its_time
                attempts_go_before_the_rest_if_asked
                a_great_history_is_forgotten_in_parts
                dead_letters_go_with_their_messages
                a_dead_letter_keeps_its_message_to_the_end
                dead_letters_leave_the_list_after_their_time
                ended_tasks_are_forgotten
                counters_that_nothing_uses_are_forgotten
                many_messages_are_expunged_at_once
            }
        }

        #[test]
        fn random_sequences_agree_with_the_model() {
            $crate::conformance::sequences::agree_with_the_model::<$harness>();
        }
    };
    (@rooms $harness:ty; $($room:ident { $($behaviour:ident)+ })+) => {
        $(mod $room {
            #[allow(unused_imports)]
            use super::*;

            $(#[tokio::test]
            async fn $behaviour() {
                $crate::conformance::$room::$behaviour::<$harness>().await;
            })+
        })+
    };
}
