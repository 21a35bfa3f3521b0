package stack

import "testing"

func TestNodeRanges(t *testing.T) {
	for want, major := range map[string]int{">=18": 22, "20": 20, "20.x": 20, "^20.1.0": 20, "~18.2": 18, ">=18 <21": 20, "18 || 20": 20, "<=20": 20, "<22": 20, ">22": 24, "*": 22, "16 - 20": 20, "v24.1.0": 24} {
		for _, m := range []int{22, 24, 26, 20, 18, 16, 14} {
			if inRange(want, m) {
				if m != major {
					t.Errorf("%q: %d, want %d", want, m, major)
				}
				break
			}
		}
	}
}

func TestPythonRanges(t *testing.T) {
	for want, expect := range map[string][2]int{
		">=3.10": {10, 14}, ">=3.10,<3.13": {10, 12}, "==3.11.*": {11, 11}, "==3.11": {11, 11}, "~=3.11": {11, 14}, "~=3.11.2": {11, 11}, "^3.10": {10, 14},
		"~3.12": {12, 12}, "3.12.*": {12, 12}, "*": {8, 14}, ">3.9": {9, 14}, "<4": {8, 14}, "<3.11": {8, 10}, "<3.11.5": {8, 11}, "<=3.11": {8, 11}, "!=3.14.*": {8, 13},
		"!=3.12.*,>=3.10": {13, 14}, ">=3.8, !=3.9.7": {8, 14}, "3.11": {11, 11}, ">=3.99": {0, 0}, ">=2.7,!=3.0.*": {8, 14}, "^3.9 || ^3.11": {9, 14}, "<3": {0, 0}, "~=3.9,<3.12": {9, 11},
	} {
		low, high, err := pythonRange(want)
		if err != nil || low != expect[0] || high != expect[1] {
			t.Errorf("%q: %d to %d, %v, want %v", want, low, high, err, expect)
		}
	}
	if _, _, err := pythonRange("three"); err == nil {
		t.Error("nonsense is understood")
	}
}
