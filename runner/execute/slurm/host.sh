# What a batch script does around srun, on the host: a run's container may lack Slurm's commands, and a setup
# line may take them off PATH. The script sets assay_jobs (a folder) and assay_requeue (`yes` or nothing).

assay_path=$PATH assay_script=$0
assay_own=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
assay_own=${assay_own:-$SLURM_JOB_ID}
export ASSAY_AFTER=${1-}  # the job that this one goes on for

# Says which line of the script has failed, and ends the job.
assay_failed() {
    echo "slurm.setup: '$(sed -n "${2}p" "$assay_script")' ended with exit code $1" >&2
    exit "$1"
}

# Adds a line about every run that goes on to its ledger: those that the runs have prepared for this event. Only a
# file that nobody else can have written is believed, and no link is followed: others may have put another folder in
# the place of this one, and what is added to a shell's start file would run.
assay_tell() {
    local event ledger line
    while IFS=$'\t' read -r event ledger line; do
        [[ $event != "$2" || -L $ledger ]] || printf '%s\n' "${line//@JOB@/${3-}}" >>"$ledger"
    done < <(exec 9<"$1" && [[ $(stat -Lc '%u %a' /dev/fd/9) =~ ^$EUID\ [0-7]?[0-7][0145][0145]$ ]] && cat <&9)
}

# Goes on in a next job if a run has asked for that: this one, requeued, or else a new one after it.
assay_go_on() {
    local asked=$assay_jobs/${SLURM_JOB_ID}_next.${SLURM_RESTART_COUNT:-0} taken job index name PATH=$assay_path
    taken=${asked/_next./_requeued.}
    mv "$asked" "$taken" 2>/dev/null || return 0
    if [[ $assay_requeue ]]; then
        ! scontrol requeue "$assay_own" || return 0
        # Slurm may have put it back by itself, after a node failure.
        [[ $(squeue -h -j "$assay_own" -o %T) == RUNNING ]] || return 0
    fi
    index=${SLURM_ARRAY_TASK_ID-}
    job=$(
        for name in "${!SLURM_@}" "${!SBATCH_@}" "${!SRUN_@}"; do  # the new job would take this one's options
            [[ $name == SLURM_CONF* || $name == SLURM_JWT ]] || unset "$name"
        done
        sbatch --parsable --dependency="afterany:$assay_own" ${index:+--array="$index"} "$assay_script" "$assay_own"
    )
    job=${job%%;*}
    if [[ $job =~ ^[0-9]+$ ]]; then
        assay_tell "$taken" submitted "$job${index:+_$index}"
    else
        assay_tell "$taken" released
    fi
}

# Older versions of Slurm do not set the end of a job's time.
if [[ ! ${SLURM_JOB_END_TIME-} ]]; then
    while read -r assay_id assay_end; do
        if [[ $assay_id == "$SLURM_JOB_ID" ]] && assay_end=$(date -d "$assay_end" +%s 2>/dev/null); then
            export SLURM_JOB_END_TIME=$assay_end
        fi
    done < <(squeue -h -j "$SLURM_JOB_ID" -o '%A %e')
fi
if [[ ${SLURM_JOB_END_TIME-} ]]; then  # a run that hangs must not keep the others of its job from going on
    (sleep $((SLURM_JOB_END_TIME - $(date +%s) - 5)) && assay_go_on) &
fi
if [[ ${SLURM_RESTART_COUNT:-0} != 0 || $ASSAY_AFTER ]]; then
    assay_id=$assay_own
    [[ ${SLURM_RESTART_COUNT:-0} != 0 ]] || assay_id=$ASSAY_AFTER
    ASSAY_EARLIER=$(sacct -n -P -D -X -j "$assay_id" --name="$SLURM_JOB_NAME" -o State,ExitCode,NodeList)
    export ASSAY_EARLIER
fi
