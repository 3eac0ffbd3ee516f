* the objective times 2 is in ns
NAME model0_small FREE
ROWS
 N obj
 G r0_range
 E r1_equal
 L r2_below
 G r3_above
 G r5_empty
COLUMNS
 M1 'MARKER' 'INTORG'
 x0_a obj 1
 x0_a r0_range 2
 M2 'MARKER' 'INTEND'
 x1_b_b obj -2
 x1_b_b r0_range 1
 x1_b_b r2_below 1
 M1 'MARKER' 'INTORG'
 x2_c obj 0.5
 x2_c r1_equal 1
 M2 'MARKER' 'INTEND'
 x3_d obj 0
 x3_d r0_range -0.5
 x3_d r2_below 1
 x4_e obj 3
 x4_e r1_equal 1
 x4_e r3_above 1
 x5_f obj 1
 x5_f r2_below 1
 M1 'MARKER' 'INTORG'
 x6_unused obj -1
 M2 'MARKER' 'INTEND'
 constant obj -3.5
RHS
 RHS r0_range 1
 RHS r1_equal -1
 RHS r2_below 9
 RHS r3_above -4
 RHS r5_empty -1
RANGES
 RNG r0_range 5
 RNG r5_empty 1
BOUNDS
 LO BND x0_a 0
 UP BND x0_a 4
 MI BND x1_b_b
 UP BND x1_b_b 3.25
 LO BND x2_c -5
 UP BND x2_c -1
 LO BND x3_d 2
 PL BND x3_d
 FR BND x4_e
 FX BND x5_f 7
 LO BND x6_unused 0
 UP BND x6_unused 1
 FX BND constant 1
ENDATA
